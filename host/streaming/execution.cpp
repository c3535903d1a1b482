#include "host/streaming/execution.hpp"

#include <algorithm>
#include <exception>
#include <thread>

#include "host/base/blake3.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/scratch.hpp"
#include "host/base/team.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

constexpr uint64_t largest_block = 8ULL << 20;
constexpr uint64_t smallest_block = 256ULL << 10;
constexpr uint64_t rows_piece = 1ULL << 20;

/// The offset in a buffer of the bytes for file offset `offset`, so that both have the same alignment.
uint64_t shift_for(uint64_t offset, uint32_t itemsize) {
  return offset % itemsize == 0 ? offset % io_alignment : 0;
}

/// Blocks of one item joined in their order, whatever order they were computed in.
FinishedBlock joined(Checksum kind, FinishedBlocks& blocks, bool has_digests) {
  std::ranges::sort(blocks, {}, &FinishedBlock::begin);
  FinishedBlock out = blocks.front();
  if (has_digests) {
    Blake3 digest;
    for (const FinishedBlock& block : blocks) digest.add(block.digest);
    out.digest = digest.digest();
  }
  for (size_t i = 1; i < blocks.size(); ++i) {
    const FinishedBlock& next = blocks[i];
    if (kind != Checksum::none) out.crc = combined(kind, out.crc, next.crc, next.bytes);
    out.bytes += next.bytes;
    out.overflowed += next.overflowed;
    out.changed += next.changed;
    out.vanished += next.vanished;
    out.end = next.end;
  }
  return out;
}

}  // namespace

int thread_count(const StreamingOptions& options) {
  if (options.threads > 0) return std::min(options.threads, 64);
  static const auto cores = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U));
  return cores;
}

uint64_t block_size(const StreamingOptions& options) {
  const auto share = options.memory / (static_cast<uint64_t>(thread_count(options)) * buffers_per_block);
  return std::clamp(share, smallest_block, largest_block);
}

uint64_t shared_block_size(const StreamingOptions& options) {
  constexpr uint64_t blocks = 24;  // of six threads
  return std::clamp(options.memory / blocks, smallest_block, largest_block / 2);
}

int64_t piece_elements(const Expression& expression, uint64_t offset) {
  if (const int64_t grain = expression.granularity(); grain > 1) {
    return std::max(grain, static_cast<int64_t>(rows_piece / expression.itemsize()) / grain * grain);
  }
  const uint64_t bytes = io_piece - offset % io_piece;
  return std::max<int64_t>(1, static_cast<int64_t>(bytes / expression.itemsize()));
}

Execution::Execution(Writer& writer, std::vector<Slot> slots, const StreamingOptions& options,
                     const Assignment* assignment)
    : writer_(writer),
      slots_(std::move(slots)),
      options_(options),
      assignment_(assignment),
      block_bytes_(assignment != nullptr ? assignment->block_bytes
                   : options.provenance  ? shared_block_size(options)
                                         : block_size(options)),
      items_(writer.items()),
      order_(reading_order(items_)),
      walk_(items_, order_, block_bytes_, assignment != nullptr ? assignment->share : Share()) {
  if (slots_.size() != items_.size() && !options.is_replay)
    fail(Errc::internal, "{} slots for {} items", slots_.size(), items_.size());
  for (const Item& item : items_) total_ += item.tensor.nbytes();
  if (assignment == nullptr) return;
  for (const FinishedBlock& block : *assignment->done) {
    if (block.output != assignment->output || block.item >= items_.size() || block.end < 0) continue;
    if (!done_before_.emplace(block.item, block.begin).second) continue;
    done_ += block.bytes;
  }
}

bool Execution::is_done(const Block& block) const {
  return !done_before_.empty() && done_before_.contains({block.item, block.begin});
}

void Execution::fill() {
  {
    std::vector<std::jthread> workers;
    running_ = thread_count(options_);
    workers.reserve(static_cast<size_t>(running_));
    for (int i = thread_count(options_); i > 0; --i) workers.emplace_back([this] { work(); });
    report_until_done();
  }
  if (failure_) std::rethrow_exception(failure_);
  check_interrupt();
}

bool Execution::next(Block& block) {
  const std::lock_guard lock(mutex_);
  if (failure_ || interrupt_requested()) return false;
  do {
    if (!walk_.next(block)) return false;
    if (assignment_ != nullptr && block.begin == 0) begins_here_.insert(block.item);
  } while (is_done(block));
  current_ = block.item;
  return true;
}

void Execution::work() {
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

void Execution::process(const Block& block) {
  const Item& item = items_[block.item];
  const Expression& expression = *item.tensor.expression();
  const Slot slot = options_.is_replay ? Slot() : slots_[block.item];
  const uint32_t itemsize = expression.itemsize();
  if (block.begin == 0) {
    within(item.key, [&] { verify_scattered(expression); });
    expect_scattered(expression);
  }
  FinishedBlock done;
  done.item = block.item;
  done.begin = block.begin;
  done.end = block.end;
  done.bytes = static_cast<uint64_t>(block.end - block.begin) * itemsize;
  Losses losses;
  std::optional<Blake3> digest;
  if (has_digests()) digest.emplace();
  if (item.pieces) {
    Scratch buffer(done.bytes);
    within(item.key, [&] { losses += expression.read(block.begin, buffer.bytes()); });
    if (digest) digest->add(buffer.bytes());
    if (!options_.is_replay)
      append(*item.pieces->sink, block.turn, item.pieces->sink->pack(buffer.bytes()), done);
    done_.fetch_add(done.bytes, std::memory_order_relaxed);
  }
  for (int64_t begin = item.pieces ? block.end : block.begin; begin < block.end;) {
    const uint64_t offset = slot.offset + static_cast<uint64_t>(begin) * itemsize;
    // BLAKE3 is fastest with pieces of one size, a power of two.
    const int64_t end = std::min(block.end, begin + piece_elements(expression, digest ? 0 : offset));
    const uint64_t bytes = static_cast<uint64_t>(end - begin) * itemsize;
    Scratch buffer(bytes + io_alignment);
    const std::span<std::byte> piece = buffer.bytes().subspan(shift_for(offset, itemsize), bytes);
    within(item.key, [&] { losses += expression.read(begin, piece); });
    if (item.checksum != Checksum::none) done.crc = extended(item.checksum, done.crc, piece);
    if (digest) digest->add(piece);
    if (slot.file != nullptr) slot.file->write(offset, piece);
    done_.fetch_add(bytes, std::memory_order_relaxed);
    begin = end;
  }
  const bool dropped = expression.drop(block.begin, block.end);
  done.overflowed = losses.overflowed;
  done.changed = losses.changed;
  done.vanished = losses.vanished;
  if (digest) done.digest = digest->digest();
  if (finish(block, done) && !dropped) drop_sources(expression);
}

void Execution::append(PieceSink& sink, uint64_t turn, Bytes packed, FinishedBlock& done) {
  if (assignment_ != nullptr) return assignment_->ledger->keep(done, packed);
  append_in_turn(sink, turn, std::move(packed));
}

/// Waits for all earlier pieces, because the place of a piece depends on their sizes. Blocks are handed out
/// in order, so the earlier ones are in progress.
void Execution::append_in_turn(PieceSink& sink, uint64_t turn, Bytes packed) {
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
bool Execution::finish(const Block& block, FinishedBlock done) {
  const Item& item = items_[block.item];
  if (assignment_ != nullptr) {
    done.output = assignment_->output;
    assignment_->ledger->note(done, slots_[block.item].file);
  }
  const std::lock_guard lock(mutex_);
  int64_t& written = written_[block.item];
  written += block.end - block.begin;
  if (assignment_ == nullptr) begun_[block.item].push_back(done);
  if (written < item.tensor.numel()) return false;
  written_.erase(block.item);
  if (const auto begun = begun_.find(block.item); begun != begun_.end()) {
    whole_.push_back(joined(item.checksum, begun->second, has_digests()));
    begun_.erase(begun);
  }
  return true;
}

FinishedBlocks Execution::take_finished() {
  return std::move(whole_);
}

void Execution::verify_item(size_t item, std::unordered_set<const Expression*>& seen) const {
  const Expression& expression = *items_[item].tensor.expression();
  within(items_[item].key, [&] { verify_sources(expression, &Storage::verify_whole, seen); });
}

void Execution::verify() {
  std::unordered_set<const Expression*> seen;
  for (const size_t item : begins_here_) {
    verify_item(item, seen);
    FinishedBlock verified;
    verified.output = assignment_->output;
    verified.item = item;
    verified.begin = verified.end = -1;
    assignment_->ledger->note(verified, nullptr);
  }
}

std::vector<ItemDigest> Execution::digests() const {
  std::vector<ItemDigest> out;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Tensor& tensor = items_[i].tensor;
    const auto bytes = static_cast<uint64_t>(block_elements(tensor, block_bytes_)) * size_of(tensor.dtype());
    out.push_back({&items_[i], options_.is_replay ? Slot() : slots_[i], bytes, digests_[i]});
  }
  return out;
}

/// `blocks`: sorted by item and begin.
void Execution::append_kept(const FinishedBlocks& blocks,
                            const std::function<fs::path(const FinishedBlock&)>& pieces) {
  for (const size_t i : order_) {
    if (!items_[i].pieces) continue;
    auto block = std::lower_bound(blocks.begin(), blocks.end(), i,
                                  [](const FinishedBlock& one, size_t item) { return one.item < item; });
    for (; block != blocks.end() && block->item == i; ++block) {
      check_interrupt();
      items_[i].pieces->sink->append(read_piece(pieces(*block), *block));
    }
  }
}

std::vector<LostValues> Execution::complete(FinishedBlocks blocks,
                                            const std::function<fs::path(const FinishedBlock&)>& pieces) {
  const uint32_t own = assignment_ != nullptr ? assignment_->output : 0;
  std::set<size_t> verified;
  std::erase_if(blocks, [&](const FinishedBlock& block) {
    if (block.output != own || block.item >= items_.size()) return true;
    if (block.end < 0) verified.insert(block.item);
    return block.end < 0;
  });
  const auto place = [](const FinishedBlock& block) { return std::pair(block.item, block.begin); };
  std::sort(blocks.begin(), blocks.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  // A part that was done twice has the same blocks twice.
  const auto is_same = [&](const auto& a, const auto& b) { return place(a) == place(b); };
  blocks.erase(std::unique(blocks.begin(), blocks.end(), is_same), blocks.end());
  std::vector<uint32_t> checksums(items_.size());
  std::map<size_t, Losses> losses;
  if (has_digests()) digests_.resize(items_.size());
  auto next = blocks.cbegin();
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto first = next;
    int64_t at = 0;
    for (; next != blocks.cend() && next->item == i; ++next) at = next->begin == at ? next->end : -1;
    if (at != items_[i].tensor.numel())
      fail(Errc::internal, "{} is not whole: its blocks end at element {} of {}", quote(items_[i].key), at,
           items_[i].tensor.numel());
    if (first == next) continue;
    FinishedBlock whole = *first;
    if (assignment_ != nullptr) {
      FinishedBlocks of_item(first, next);
      whole = joined(items_[i].checksum, of_item, has_digests());
    }
    checksums[i] = whole.crc;
    if (has_digests()) digests_[i] = whole.digest;
    const Losses lost{whole.overflowed, whole.changed, whole.vanished};
    if (lost.any()) losses[i] = lost;
  }
  if (assignment_ != nullptr) append_kept(blocks, pieces);
  blocks = {};
  std::vector<LostValues> lost = lost_values(losses);
  if (!options_.allow_overflow) refuse_losses(lost);
  std::unordered_set<const Expression*> seen;
  for (size_t i = 0; i < items_.size(); ++i)
    if (!verified.contains(i)) verify_item(i, seen);
  if (!options_.is_replay) writer_.finish(checksums);
  report();
  return lost;
}

std::vector<LostValues> Execution::lost_values(const std::map<size_t, Losses>& losses) const {
  std::vector<LostValues> out;
  std::unordered_set<const Expression*> seen;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    const Expression& expression = *item.tensor.expression();
    if (!seen.insert(&expression).second) continue;
    const auto known = losses.find(i);
    Losses lost = known == losses.end() ? Losses() : known->second;
    within(item.key, [&] { lost += operand_losses(expression); });
    if (lost.any()) out.push_back({item.key, item.tensor.dtype(), item.tensor.numel(), lost});
  }
  return out;
}

void Execution::report_until_done() {
  std::unique_lock lock(mutex_);
  while (running_ > 0) {
    finished_.wait_for(lock, std::chrono::milliseconds(100));
    if (running_ == 0 || failure_) continue;
    lock.unlock();
    try {
      report();
    } catch (...) {
      lock.lock();
      failure_ = std::current_exception();
      continue;
    }
    lock.lock();
  }
}

void Execution::report() {
  Team& team = Team::world();
  const uint64_t done = done_.load(std::memory_order_relaxed);
  team.set_done(done);
  if (!options_.progress) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  std::string_view key = items_.empty() ? std::string_view() : std::string_view(items_[current_].key);
  options_.progress({std::min(total_, done + team.done_elsewhere()), total_, elapsed.count(), key});
}

}  // namespace cbk
