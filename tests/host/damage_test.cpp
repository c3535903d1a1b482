// Bytes that are not what the checksum of their file says.
#include <catch2/catch.hpp>

#include "host/base/checksum.hpp"
#include "host/checkpoint/make_writer.hpp"
#include "host/checkpoint/open.hpp"
#include "host/tensor/compare.hpp"
#include "host/tensor/csv.hpp"
#include "host/tensor/grid.hpp"
#include "host/tensor/statistics.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;

namespace {

void save(const Value& root, const fs::path& target, const WriteOptions& options = {}, int threads = 2) {
  const auto writer = make_writer(root, target, options);
  StreamingOptions how;
  how.threads = threads;
  write_one(*writer, how);
}

Value dict_of(std::initializer_list<std::pair<const char*, Tensor>> tensors) {
  const Value root = Value::dict();
  for (const auto& [key, tensor] : tensors) root.as_dict().set(key, tensor);
  return root;
}

/// A torch archive beyond what is checked when it is opened, with a small tensor and a large matrix, of which
/// byte `position` is wrong.
class DamagedArchive {
 public:
  explicit DamagedArchive(uint64_t position) : path_(folder_.path("big.pt")) {
    save(dict_of({{"small", Tensor::full(DType::float32, {16}, 1)},
                  {"layer.weight", Tensor::normal(DType::float32, {2200, 2000}, 0, 1, 1)}}),
         path_);
    const Tensor matrix = open().root.find("layer.weight")->as_tensor();
    std::string content = read_file(path_, uint64_t{64} << 20);
    content[matrix.view()->storage->place().offset + position] ^= 0x40;
    folder_.write("big.pt", content);
  }
  [[nodiscard]] Checkpoint open() const { return open_checkpoint(path_); }
  [[nodiscard]] const Folder& folder() const { return folder_; }

 private:
  Folder folder_;
  fs::path path_;
};

constexpr uint64_t matrix_bytes = 2200 * 2000 * 4;

}  // namespace

TEST_CASE("damage: a wrong byte in a large archive is found by every copy", "[damage]") {
  const DamagedArchive archive(GENERATE(uint64_t{0}, uint64_t{9'000'001}, matrix_bytes - 1));
  const Value root = archive.open().root;
  const Tensor& matrix = root.find("layer.weight")->as_tensor();
  const Tensor& small = root.find("small")->as_tensor();
  const std::vector<std::pair<std::string, Value>> jobs = {
      {"as it is", root},
      {"transposed", dict_of({{"layer.weight", matrix.transpose(0, 1)}})},
      {"cast", dict_of({{"layer.weight", matrix.cast(DType::bfloat16)}})},
      {"a corner", dict_of({{"layer.weight", matrix.slice(0, 7, 9).slice(1, 3, 500)}})},
      {"twice", dict_of({{"layer.weight", Tensor::concat({matrix, matrix}, 0)}})},
      {"halves",
       dict_of({{"layer.weight", matrix.slice(0, 0, 1000)}, {"layer.rest", matrix.slice(0, 1000, 2200)}})},
      {"rows", dict_of({{"layer.weight", matrix.index_select(0, {5, 1, 5, 2000})}})}};
  for (const char* name : {"copy.pt", "copy.safetensors", "copy.mdl", "copy.h5", "copy.index", "folder"}) {
    const std::string target = name;
    WriteOptions options;
    if (target == "copy.mdl") options.h5_version = "0.4";
    if (target == "folder") options.format = "safetensors";
    if (target == "folder") options.shard_size = 1 << 20;
    for (const auto& [what, job] : jobs) {
      CAPTURE(target, what);
      CHECK_THROWS_WITH(
          save(job, archive.folder().path(target), options, 1 + static_cast<int>(what.size() % 3)),
          Catch::Contains("layer.") && Catch::Contains("big.pt") && Catch::Contains("damaged"));
      CHECK(archive.folder().names() == std::vector<std::string>{"big.pt"});
    }
  }
  // What does not need the damaged bytes is copied.
  save(dict_of({{"small", small}}), archive.folder().path("small.safetensors"));
  CHECK(open_checkpoint(archive.folder().path("small.safetensors"))
            .root.find("small")
            ->as_tensor()
            .to_bytes() == small.to_bytes());
}

TEST_CASE("damage: whoever looks at a part is not made to read all", "[damage]") {
  const DamagedArchive archive(matrix_bytes - 1);
  const Tensor matrix = archive.open().root.find("layer.weight")->as_tensor();
  CHECK(matrix.slice(0, 0, 2).to_bytes().size() == 2 * 2000 * 4);
  CHECK(matrix.slice(0, 0, 2).to_bytes().size() == 2 * 2000 * 4);  // what is read twice is no longer followed
  CHECK(matrix.transpose(0, 1).slice(0, 0, 1).to_bytes().size() == 2200 * 4);
  CHECK_THROWS_WITH(archive.open().root.find("layer.weight")->as_tensor().to_bytes(),
                    Catch::Contains("damaged"));
}

TEST_CASE("damage: whoever looks at all of it, in any order, hears of it", "[damage]") {
  const DamagedArchive archive(9'000'001);
  const auto turned = [&] { return archive.open().root.find("layer.weight")->as_tensor().transpose(0, 1); };
  CHECK_THROWS_WITH(statistics(turned()), Catch::Contains("damaged"));
  CHECK_THROWS_WITH(statistics(turned().cast(DType::int32), true), Catch::Contains("damaged"));
  CHECK_THROWS_WITH(grid(turned(), 8, 8), Catch::Contains("damaged"));
  CHECK_THROWS_WITH(compare(turned(), Tensor::full(DType::float32, {2000, 2200}, 1), {}, 1),
                    Catch::Contains("damaged"));
  CHECK_THROWS_WITH(write_csv(turned(), archive.folder().path("a.csv"), false), Catch::Contains("damaged"));
  CHECK_THROWS_WITH(write_csv(turned().slice(0, 0, 2), archive.folder().path("a.csv"), false),
                    Catch::Contains("damaged"));
  CHECK(archive.folder().names() == std::vector<std::string>{"big.pt"});
  CHECK(statistics(turned().slice(0, 0, 2)).numel == 2 * 2200);
}

TEST_CASE("damage: checksums of parts make the checksum of all", "[damage]") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * i >> 3);
  const ByteView bytes = as_bytes(text);
  for (const Checksum kind : {Checksum::crc32, Checksum::crc32c}) {
    const uint32_t whole = extended(kind, 0, bytes);
    for (const size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{64}, size_t{4999}, size_t{5000}}) {
      const ByteView rest = bytes.subspan(cut);
      CHECK(extended(kind, extended(kind, 0, bytes.first(cut)), rest) == whole);
      CHECK(combined(kind, extended(kind, 0, bytes.first(cut)), extended(kind, 0, rest), rest.size()) ==
            whole);
    }
  }
  CHECK(extended(Checksum::crc32, 0, as_bytes("123456789")) == 0xCBF43926);
  CHECK(extended(Checksum::crc32c, 0, as_bytes("123456789")) == 0xE3069283);
}
