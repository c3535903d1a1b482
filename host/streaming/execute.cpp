#include "host/streaming/execute.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "host/base/interrupt.hpp"
#include "host/base/scratch.hpp"
#include "host/streaming/expansion.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

constexpr uint64_t largest_block = 8ULL << 20;
constexpr uint64_t smallest_block = 256ULL << 10;
constexpr uint64_t rows_piece = 1ULL << 20;

int thread_count(const ExecuteOptions& options) {
  if (options.threads > 0) return std::min(options.threads, 64);
  static const auto cores = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U));
  return cores;
}

/// A block in flight needs its result, an operand of up to twice the width, and a copy in source order.
constexpr uint64_t buffers_per_block = 4;

uint64_t block_size(const ExecuteOptions& options) {
  const auto share = options.memory / (static_cast<uint64_t>(thread_count(options)) * buffers_per_block);
  return std::clamp(share, smallest_block, largest_block);
}

/// Elements per block: as many as fit, cut at the expression's granularity.
int64_t block_elements(const Tensor& tensor, uint64_t bytes) {
  const auto fit = std::max<int64_t>(1, static_cast<int64_t>(bytes / size_of(tensor.dtype())));
  const int64_t grain = tensor.expression()->granularity();
  if (grain <= fit) return fit / grain * grain;
  return grain <= 2 * fit ? grain : fit;
}

/// Elements per write at file offset `offset`: up to the next multiple of a piece, or, if the expression
/// prefers whole rows, as many as stay in the second-level cache until they are written.
int64_t piece_elements(const Expression& expression, uint64_t offset) {
  if (const int64_t grain = expression.granularity(); grain > 1) {
    return std::max(grain, static_cast<int64_t>(rows_piece / expression.itemsize()) / grain * grain);
  }
  const uint64_t bytes = io_piece - offset % io_piece;
  return std::max<int64_t>(1, static_cast<int64_t>(bytes / expression.itemsize()));
}

/// The offset in a buffer of the bytes for file offset `offset`, so that both have the same alignment.
uint64_t shift_for(uint64_t offset, uint32_t itemsize) {
  return offset % itemsize == 0 ? offset % io_alignment : 0;
}

/// The place of an item's first bytes; items without a file come first.
Storage::Place place_of(const Expression& expression) {
  if (const auto* source = dynamic_cast<const ViewExpression*>(&expression)) {
    Storage::Place place = source->view().storage->place();
    place.offset += static_cast<uint64_t>(source->view().offset) * source->itemsize();
    return place;
  }
  Storage::Place first;
  expression.each_input([&](const Expression& input) {
    if (first.file.empty()) first = place_of(input);
  });
  return first;
}

/// Items in the order of their sources, files in the order in which they first appear.
std::vector<size_t> reading_order(const std::vector<Item>& items) {
  struct Position {
    size_t file;
    uint64_t offset;
    size_t item;
  };
  std::map<std::string, size_t> files;
  files.emplace("", 0);
  std::vector<Position> positions;
  for (size_t i = 0; i < items.size(); ++i) {
    const Storage::Place place =
        within(items[i].key, [&] { return place_of(*items[i].tensor.expression()); });
    positions.push_back({files.emplace(place.file, files.size()).first->second, place.offset, i});
  }
  std::stable_sort(positions.begin(), positions.end(), [](const Position& a, const Position& b) {
    return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
  });
  std::vector<size_t> order;
  order.reserve(positions.size());
  for (const Position& position : positions) order.push_back(position.item);
  return order;
}

/// The streaming of one plan: workers take blocks from a shared cursor, compute them and write them in place.
class Execution {
 public:
  Execution(Writer& writer, const ExecuteOptions& options, Transaction& transaction)
      : writer_(writer),
        transaction_(transaction),
        options_(options),
        items_(writer.items()),
        order_(reading_order(items_)),
        block_bytes_(block_size(options)),
        checksums_(items_.size()) {
    for (const Item& item : items_) total_ += item.tensor.nbytes();
  }

  std::vector<LostValues> run() {
    const auto start = std::chrono::steady_clock::now();
    slots_ = writer_.lay_out(transaction_);
    if (slots_.size() != items_.size())
      fail(Errc::internal, "{} slots for {} items", slots_.size(), items_.size());
    {
      std::vector<std::jthread> workers;
      running_ = thread_count(options_);
      workers.reserve(static_cast<size_t>(thread_count(options_)));
      for (int i = 0; i < thread_count(options_); ++i) workers.emplace_back([this] { work(); });
      report_until_done(start);
    }
    if (failure_) std::rethrow_exception(failure_);
    check_interrupt();
    std::vector<LostValues> lost = lost_values();
    if (!options_.allow_overflow) refuse_losses(lost);
    verify();
    writer_.finish(checksums_);
    report(start);
    transaction_.expect_unchanged(sources());
    return lost;
  }

 private:
  struct Block {
    size_t item = 0;
    int64_t begin = 0;
    int64_t end = 0;
    uint64_t turn = 0;  // of the pieces that go to sinks
  };
  struct BlockSum {
    int64_t begin = 0;
    uint64_t bytes = 0;
    uint32_t crc = 0;
  };

  struct Begun {
    int64_t done = 0;  // elements
    std::vector<BlockSum> sums;
  };

  bool next(Block& block) {
    const std::lock_guard lock(mutex_);
    if (failure_ || interrupt_requested()) return false;
    while (position_ < order_.size()) {
      const size_t item = order_[position_];
      const Tensor& tensor = items_[item].tensor;
      if (cursor_ < tensor.numel()) {
        if (const auto& pieces = items_[item].pieces) {
          const int64_t row_end = (cursor_ / pieces->row + 1) * pieces->row;
          block = {item, cursor_, std::min(row_end, cursor_ + pieces->elements), turns_++};
        } else {
          if (cursor_ == 0) step_ = block_elements(tensor, block_bytes_);
          block = {item, cursor_, std::min(tensor.numel(), cursor_ + step_)};
        }
        cursor_ = block.end;
        current_ = item;
        return true;
      }
      ++position_;
      cursor_ = 0;
    }
    return false;
  }

  void work() {
    try {
      Block block;
      while (next(block)) process(block);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_turn_.notify_all();
    }
    release_scratch();
    const std::lock_guard lock(mutex_);
    --running_;
    finished_.notify_one();
  }

  void process(const Block& block) {
    const Item& item = items_[block.item];
    const Expression& expression = *item.tensor.expression();
    const Slot& slot = slots_[block.item];
    const uint32_t itemsize = expression.itemsize();
    if (block.begin == 0) within(item.key, [&] { verify_scattered(expression); });
    BlockSum sum{block.begin, static_cast<uint64_t>(block.end - block.begin) * itemsize, 0};
    Losses losses;
    if (item.pieces) {
      Scratch buffer(sum.bytes);
      within(item.key, [&] { losses += expression.read(block.begin, buffer.bytes()); });
      append_in_turn(*item.pieces->sink, block.turn, item.pieces->sink->pack(buffer.bytes()));
      done_.fetch_add(sum.bytes, std::memory_order_relaxed);
    }
    for (int64_t begin = item.pieces ? block.end : block.begin; begin < block.end;) {
      const uint64_t offset = slot.offset + static_cast<uint64_t>(begin) * itemsize;
      const int64_t end = std::min(block.end, begin + piece_elements(expression, offset));
      const uint64_t bytes = static_cast<uint64_t>(end - begin) * itemsize;
      Scratch buffer(bytes + io_alignment);
      const std::span<std::byte> piece = buffer.bytes().subspan(shift_for(offset, itemsize), bytes);
      within(item.key, [&] { losses += expression.read(begin, piece); });
      if (item.checksum != Checksum::none) sum.crc = extended(item.checksum, sum.crc, piece);
      slot.file->write(offset, piece);
      done_.fetch_add(bytes, std::memory_order_relaxed);
      begin = end;
    }
    const bool dropped = expression.drop(block.begin, block.end);
    if (finish(block, sum, losses) && !dropped) drop_sources(expression);
  }

  /// Waits for all earlier pieces, because the place of a piece depends on their sizes. Blocks are handed out
  /// in order, so the earlier ones are in progress.
  void append_in_turn(PieceSink& sink, uint64_t turn, Bytes packed) {
    std::unique_lock lock(mutex_);
    next_turn_.wait(lock, [&] { return turn_ == turn || failure_; });
    if (failure_) return;
    lock.unlock();  // the turn is ours
    sink.append(std::move(packed));
    lock.lock();
    ++turn_;
    next_turn_.notify_all();
  }

  /// True for the block of an item that is finished last.
  bool finish(const Block& block, const BlockSum& sum, const Losses& losses) {
    const std::lock_guard lock(mutex_);
    if (losses.any()) losses_[block.item] += losses;
    const Item& item = items_[block.item];
    const auto place = begun_.try_emplace(block.item).first;
    Begun& begun = place->second;
    if (item.checksum != Checksum::none) begun.sums.push_back(sum);
    begun.done += block.end - block.begin;
    if (begun.done < item.tensor.numel()) return false;
    checksums_[block.item] = joined(item.checksum, begun.sums);
    begun_.erase(place);
    return true;
  }

  /// Block checksums joined in the order of the blocks, whatever order they were computed in.
  static uint32_t joined(Checksum kind, std::vector<BlockSum>& sums) {
    std::ranges::sort(sums, {}, &BlockSum::begin);
    uint32_t crc = 0;
    for (const BlockSum& sum : sums) crc = combined(kind, crc, sum.crc, sum.bytes);
    return crc;
  }

  std::vector<LostValues> lost_values() const {
    std::vector<LostValues> out;
    std::unordered_set<const Expression*> seen;
    for (size_t i = 0; i < items_.size(); ++i) {
      const Item& item = items_[i];
      const Expression& expression = *item.tensor.expression();
      if (!seen.insert(&expression).second) continue;
      const auto known = losses_.find(i);
      Losses losses = known == losses_.end() ? Losses() : known->second;
      within(item.key, [&] { losses += operand_losses(expression); });
      if (losses.any()) out.push_back({item.key, item.tensor.dtype(), item.tensor.numel(), losses});
    }
    return out;
  }

  /// Verifies the sources, which depends on all of their bytes.
  void verify() const {
    std::unordered_set<const Expression*> seen;
    for (const Item& item : items_) {
      within(item.key, [&] { verify_sources(*item.tensor.expression(), &Storage::verify_whole, seen); });
    }
  }

  [[nodiscard]] SourceFiles sources() const {
    SourceFiles files;
    std::unordered_set<const Expression*> seen;
    for (const Item& item : items_) add_source_files(*item.tensor.expression(), files, seen);
    return files;
  }

  void report_until_done(std::chrono::steady_clock::time_point start) {
    std::unique_lock lock(mutex_);
    while (running_ > 0) {
      finished_.wait_for(lock, std::chrono::milliseconds(100));
      if (running_ == 0 || !options_.progress || failure_) continue;
      lock.unlock();
      try {
        report(start);
      } catch (...) {
        lock.lock();
        failure_ = std::current_exception();
        continue;
      }
      lock.lock();
    }
  }

  void report(std::chrono::steady_clock::time_point start) {
    if (!options_.progress) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::string_view key = items_.empty() ? std::string_view() : std::string_view(items_[current_].key);
    options_.progress({done_.load(std::memory_order_relaxed), total_, elapsed.count(), key});
  }

  Writer& writer_;
  Transaction& transaction_;
  const ExecuteOptions& options_;
  const std::vector<Item>& items_;
  const std::vector<size_t> order_;
  const uint64_t block_bytes_;
  std::vector<Slot> slots_;
  uint64_t total_ = 0;
  std::atomic<uint64_t> done_{0};
  std::atomic<size_t> current_{0};

  std::mutex mutex_;  // everything below
  std::condition_variable finished_;
  std::condition_variable next_turn_;
  uint64_t turns_ = 0;  // given to blocks
  uint64_t turn_ = 0;   // whose piece is appended next
  int running_ = 0;
  size_t position_ = 0;  // in order_
  int64_t cursor_ = 0;   // next element of that item
  int64_t step_ = 1;
  std::map<size_t, Begun> begun_;    // items with some blocks written
  std::vector<uint32_t> checksums_;  // of the items that are written
  std::map<size_t, Losses> losses_;  // of the items that have some
  std::exception_ptr failure_;
};

}  // namespace

Forecast forecast(const Writer& writer, const ExecuteOptions& options) {
  check_expansion(writer, options.max_expansion);
  Forecast result;
  result.bytes_written = writer.overhead();
  uint64_t largest = 0;  // of the buffers a thread works in
  for (const Item& item : writer.items()) {
    const Tensor::Cost cost = item.tensor.cost();
    result.bytes_read += cost.bytes_read;
    result.bytes_written += item.tensor.nbytes();
    const Expression& expression = *item.tensor.expression();
    const auto piece = static_cast<uint64_t>(piece_elements(expression, 0)) * expression.itemsize();
    largest = std::max({largest, std::min({item.tensor.nbytes(), piece, block_size(options)})});
    if (cost.lossy) result.lossy.push_back(item.key);
  }
  result.tensors = writer.items().size();
  result.peak_memory = largest * buffers_per_block * static_cast<uint64_t>(thread_count(options));
  return result;
}

std::vector<LostValues> stream(Writer& writer, const ExecuteOptions& options, Transaction& transaction) {
  check_expansion(writer, options.max_expansion);
  return Execution(writer, options, transaction).run();
}

std::vector<LostValues> execute(Writer& writer, const ExecuteOptions& options) {
  Transaction transaction;
  std::vector<LostValues> lost = stream(writer, options, transaction);
  transaction.commit(options.sync);
  return lost;
}

}  // namespace cbk
