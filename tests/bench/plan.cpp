// Makes the plan of a large model for some number of ranks with the host's own code, and prints what it costs
// and which parts of which files each rank reads and writes. scale.py replays that.
//
//   cbk_plan MODEL RANKS [--transposed] [--shard BYTES] [--legs]
//
// MODEL: 70B, 405B, 1T, 1T-experts, or COUNTxROWSxCOLUMNS, so many float32 matrices; the models are bfloat16.
// --transposed: every second matrix is transposed, as in conversions of GPT-2's kind.
// --shard: bytes of a source and of a target file (default: 5e9); 0: one file each.
// --legs: after the line of JSON, the records of `Leg`, as they are in memory.
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>

#include "host/base/error.hpp"
#include "host/streaming/execution.hpp"

namespace cbk {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of this program: the peak that getrusage knows may be that of the program that started it.
double peak_megabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) * 1024 / 1e6;
  return 0;
}

/// A place in a file that does not exist.
class PlannedStorage final : public Storage {
 public:
  PlannedStorage(Place place, uint64_t size) : place_(std::move(place)), size_(size) {}
  [[nodiscard]] uint64_t size() const override { return size_; }
  void read(uint64_t /*offset*/, std::span<std::byte> /*out*/) const override {
    fail(Errc::internal, "a plan has no bytes");
  }
  [[nodiscard]] Place place() const override { return place_; }

 private:
  Place place_;
  uint64_t size_;
};

/// A writer that is asked for its items alone.
class PlannedWriter final : public Writer {
 public:
  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] uint64_t overhead() const override { return 0; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  std::vector<Slot> lay_out(Transaction& /*transaction*/) override { return {}; }
  void finish(const std::vector<uint32_t>& /*crcs*/) override {}
  std::vector<Item>& filled() { return items_; }

 private:
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
};

/// A decoder of LLaMA's kind. `experts`: copies of the feed-forward part in each layer.
struct Decoder {
  int64_t layers, hidden, inner, groups, experts;
};

const std::map<std::string, Decoder> decoders = {{"70B", {80, 8192, 28672, 8, 1}},
                                                 {"405B", {126, 16384, 53248, 8, 1}},
                                                 {"1T", {160, 24576, 65536, 16, 1}},
                                                 {"1T-experts", {64, 8192, 10240, 8, 64}}};

/// Where an item is in the source and in the target, which have the same shards.
struct Placed {
  uint32_t file = 0;
  uint64_t offset = 0;
  int64_t rows = 0;  // of the source, if the item is its transpose
};

struct Model {
  PlannedWriter writer;
  std::vector<Placed> places;
  uint32_t files = 1;
};

class Maker {
 public:
  Maker(uint64_t shard, bool is_transposed) : shard_(shard), is_transposed_(is_transposed) {}

  void decoder(const Decoder& of) {
    constexpr int64_t head_width = 128, vocabulary = 128256;
    add("embed", {vocabulary, of.hidden});
    for (int64_t layer = 0; layer < of.layers; ++layer) {
      const std::string name = fmt::format("model.layers.{}.", layer);
      for (const char* projection : {"q", "o"}) add(name + projection, {of.hidden, of.hidden});
      for (const char* projection : {"k", "v"}) add(name + projection, {of.groups * head_width, of.hidden});
      for (int64_t expert = 0; expert < of.experts; ++expert) {
        const std::string inner = fmt::format("{}experts.{}.", name, expert);
        for (const char* projection : {"gate", "up"}) add(inner + projection, {of.inner, of.hidden});
        add(inner + "down", {of.hidden, of.inner});
      }
      if (of.experts > 1) add(name + "router", {of.experts, of.hidden});
      for (const char* norm : {"norm1", "norm2"}) add(name + norm, {of.hidden});
    }
    add("norm", {of.hidden});
    add("head", {vocabulary, of.hidden});
  }

  void matrices(int64_t count, int64_t rows, int64_t columns) {
    dtype_ = DType::float32;
    for (int64_t i = 0; i < count; ++i) add(fmt::format("w{}", i), {rows, columns});
  }

  Model take() { return std::move(model_); }

 private:
  void add(const std::string& key, const Shape& shape) {
    constexpr uint64_t header = 100;  // bytes of a tensor's entry: offsets are no multiples of stripes
    std::vector<Item>& items = model_.writer.filled();
    const auto bytes = static_cast<uint64_t>(numel_of(shape)) * size_of(dtype_);
    if (shard_ != 0 && end_ != 0 && end_ + bytes > shard_) {
      ++model_.files;
      end_ = 0;
    }
    if (end_ == 0) end_ = header * 64;
    const Storage::Place place{fmt::format("model-{:05}.safetensors", model_.files), end_};
    Tensor tensor = Tensor::from_view(
        {std::make_shared<PlannedStorage>(place, bytes), dtype_, 0, shape, contiguous_strides(shape)});
    const bool is_turned = is_transposed_ && shape.size() == 2 && items.size() % 2 == 0;
    if (is_turned) tensor = tensor.transpose(0, 1);
    items.push_back({key, tensor});
    model_.places.push_back({model_.files - 1, end_, is_turned ? shape[0] : 0});
    end_ += bytes;
  }

  uint64_t shard_;
  bool is_transposed_;
  DType dtype_ = DType::bfloat16;
  uint64_t end_ = 0;  // of the current file
  Model model_;
};

/// Bytes that a rank reads and writes in their order: one range of a source file to one of a target file.
struct Leg {
  uint32_t rank = 0;
  uint32_t file = 0;    // of the source and of the target
  uint64_t offset = 0;  // in both; of a transposed matrix, in the target
  uint64_t bytes = 0;   // likewise
  uint64_t run = 0;  // bytes of each piece that is read: of the rows of a matrix that is transposed; 0: all
  uint64_t requests = 0;  // blocks
};
static_assert(sizeof(Leg) == 40);

std::vector<Leg> legs_of(const Model& model, const std::vector<size_t>& order, uint64_t block_bytes,
                         int ranks) {
  std::vector<Leg> out;
  const std::vector<Item>& items = model.writer.items();
  size_t last = SIZE_MAX;  // item
  BlockWalk::each(items, order, block_bytes, ranks, [&](const Block& block, int part) {
    const Placed& place = model.places[block.item];
    const uint32_t itemsize = size_of(items[block.item].tensor.dtype());
    const uint64_t offset = place.offset + static_cast<uint64_t>(block.begin) * itemsize;
    const uint64_t bytes = static_cast<uint64_t>(block.end - block.begin) * itemsize;
    const bool is_joined = !out.empty() && out.back().rank == static_cast<uint32_t>(part) &&
                           out.back().file == place.file && out.back().offset + out.back().bytes == offset &&
                           (last == block.item || (place.rows == 0 && out.back().run == 0));
    if (!is_joined) out.push_back({static_cast<uint32_t>(part), place.file, offset, 0, 0, 0});
    out.back().bytes += bytes;
    ++out.back().requests;
    if (place.rows != 0)
      out.back().run = std::max<uint64_t>(1, out.back().bytes / static_cast<uint64_t>(place.rows));
    last = block.item;
  });
  return out;
}

/// What rank 0 does when all blocks are written, with the records that each rank would send. Bytes of these.
uint64_t complete(Model& model, uint64_t block_bytes, const std::vector<size_t>& order, int ranks) {
  StreamingOptions options;
  options.is_replay = true;  // it writes nothing
  const FinishedBlocks before;
  const Assignment assignment{{0, ranks}, 0, block_bytes, nullptr, &before};
  const std::vector<Item>& items = model.writer.items();
  std::vector<std::string> messages(static_cast<size_t>(ranks), message_of({}, {}));
  BlockWalk::each(items, order, block_bytes, ranks, [&](const Block& block, int part) {
    std::string& message = messages[static_cast<size_t>(part)];
    FinishedBlock done;
    done.item = block.item;
    done.begin = block.begin;
    done.end = block.end;
    done.bytes = static_cast<uint64_t>(block.end - block.begin) * size_of(items[block.item].tensor.dtype());
    const auto add = [&] { message.append(reinterpret_cast<const char*>(&done), sizeof done); };
    add();
    if (block.begin != 0) return;
    done.begin = done.end = -1;  // its sources are verified
    add();
  });
  uint64_t sum = 0;
  for (std::string& message : messages) {
    message.shrink_to_fit();  // as it arrives
    sum += message.size();
  }
  Execution execution(model.writer, {}, options, &assignment);
  FinishedBlocks all;
  std::vector<fs::path> pieces;
  take_messages(std::move(messages), all, pieces);
  execution.complete(std::move(all), {});
  return sum;
}

uint64_t number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > 1e15)
    fail(Errc::usage, "expected a number, found '{}'", text);
  return static_cast<uint64_t>(value);
}

void make(Maker& maker, const std::string& name) {
  if (const auto found = decoders.find(name); found != decoders.end()) return maker.decoder(found->second);
  std::array<int64_t, 3> shape{};
  size_t at = 0;
  for (int64_t& extent : shape) {
    const size_t end = std::min(name.find('x', at), name.size());
    extent =
        static_cast<int64_t>(number_of(std::string_view(name).substr(std::min(at, name.size()), end - at)));
    at = end + 1;
  }
  maker.matrices(shape[0], shape[1], shape[2]);
}

void run(const std::vector<std::string>& words) {
  if (words.size() < 2)
    fail(Errc::usage, "usage: cbk_plan MODEL RANKS [--transposed] [--shard BYTES] [--legs]");
  const int ranks = std::max(1, static_cast<int>(number_of(words[1])));
  bool is_transposed = false, has_legs = false;
  uint64_t shard = 5'000'000'000;
  for (size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "--transposed")
      is_transposed = true;
    else if (words[i] == "--legs")
      has_legs = true;
    else if (words[i] == "--shard" && i + 1 < words.size())
      shard = number_of(words[++i]);
    else
      fail(Errc::usage, "unknown option '{}'", words[i]);
  }
  auto start = Clock::now();
  Maker maker(shard, is_transposed);
  make(maker, words[0]);
  Model model = maker.take();
  const double making = seconds_since(start);

  // What each rank does before its first byte; the last one walks through the blocks of all others.
  start = Clock::now();
  const uint64_t block_bytes = shared_block_size({});
  const PlanText text = plan_text({&model.writer}, {"'out' values x"}, {}, block_bytes, nullptr);
  const std::vector<size_t> order = reading_order(model.writer.items());
  BlockWalk walk(model.writer.items(), order, block_bytes, {ranks - 1, ranks});
  Block block;
  walk.next(block);
  const double planning = seconds_since(start);
  const double planned = peak_megabytes();

  start = Clock::now();
  const uint64_t gathered = complete(model, block_bytes, order, ranks);
  const double completing = seconds_since(start);
  const double completed = peak_megabytes();

  const std::vector<Leg> legs = legs_of(model, order, block_bytes, ranks);
  const auto blocks = std::accumulate(legs.begin(), legs.end(), uint64_t{0},
                                      [](uint64_t sum, const Leg& leg) { return sum + leg.requests; });
  fmt::print(
      R"({{"model": "{}", "ranks": {}, "tensors": {}, "files": {}, "bytes": {}, "blocks": {}, "block_bytes": {}, )"
      R"("making_s": {:.4f}, "planning_s": {:.4f}, "planned_mb": {:.1f}, "plan_text_bytes": {}, )"
      R"("gathered_bytes": {}, "completing_s": {:.4f}, "peak_mb": {:.1f}, "legs": {}}})"
      "\n",
      words[0], ranks, model.places.size(), model.files, text.bytes, blocks, block_bytes, making, planning,
      planned, text.text.size(), gathered, completing, completed, legs.size());
  std::fflush(stdout);
  if (has_legs) std::fwrite(legs.data(), sizeof(Leg), legs.size(), stdout);
}

}  // namespace
}  // namespace cbk

int main(int count, char** words) {
  try {
    cbk::run({words + 1, words + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cbk_plan: %s\n", error.what());
    return 1;
  }
}
