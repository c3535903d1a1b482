#include <catch2/catch.hpp>

#include "host/checkpoint/make_writer.hpp"
#include "host/checkpoint/open.hpp"
#include "host/tensor/csv.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;

namespace {

Value two_tensors() {
  const Value root = Value::dict();
  root.as_dict().set("w", Tensor::uniform(DType::float32, {300, 7}, -1, 1, 1));
  root.as_dict().set("none", Tensor::full(DType::int16, {0, 3}, 0));
  return root;
}

void save(const Value& root, const fs::path& target) {
  write_one(*make_writer(root, target, {}));
}

std::string error_of(const fs::path& path) {
  try {
    const Checkpoint checkpoint = open_checkpoint(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("npz: what is written is read again, with the same bytes", "[npy]") {
  const Folder folder;
  const Value root = two_tensors();
  save(root, folder.path("a.npz"));
  const Checkpoint back = open_checkpoint(folder.path("a.npz"));
  CHECK(back.format == "npz");
  CHECK(back.warnings.empty());
  CHECK(back.root.find("w")->as_tensor().to_bytes() == root.find("w")->as_tensor().to_bytes());
  CHECK(back.root.find("none")->as_tensor().shape() == Shape{0, 3});
  CHECK(back.root.find("w")->as_tensor().view()->storage->place().offset % 64 == 0);
  save(back.root, folder.path("b.npz"));
  CHECK(read_file(folder.path("a.npz")) == read_file(folder.path("b.npz")));
}

TEST_CASE("npz: damage is named", "[npy]") {
  const Folder folder;
  save(two_tensors(), folder.path("a.npz"));
  std::string bytes = read_file(folder.path("a.npz"));
  bytes[1000] = static_cast<char>(bytes[1000] ^ 1);
  CHECK(error_of(folder.write("b.npz", bytes)).find("'w.npy' is damaged") != std::string::npos);
  CHECK(error_of(folder.write("c.npz", bytes.substr(0, 3000))).find("cut off") != std::string::npos);
}

TEST_CASE("npy: an array that ends too early is perhaps cut short", "[npy]") {
  const Folder folder;
  const Value root = Value::dict();
  root.as_dict().set("w", Tensor::full(DType::float32, {4}, 1));
  save(root, folder.path("a.npy"));
  const std::string bytes = read_file(folder.path("a.npy"));
  CHECK(error_of(folder.write("b.npy", bytes.substr(0, 140))).ends_with("is the file cut short?"));
  CHECK(error_of(folder.write("c.npy", bytes + "x")).ends_with("17 follow the header"));
  CHECK(error_of(folder.write("d.npy", bytes.substr(0, 60))).ends_with("is the file cut short?"));
}

TEST_CASE("csv: lines along the last dim", "[npy]") {
  const Folder folder;
  write_csv(Tensor::lower_triangle(DType::float64, {2, 3}), folder.path("a.csv"), false);
  CHECK(read_file(folder.path("a.csv")) == "1,0,0\n1,1,0\n");
  write_csv(Tensor::full(DType::uint64, {2}, 7), folder.path("b.csv"), false);
  CHECK(read_file(folder.path("b.csv")) == "7\n7\n");
  const Tensor large = Tensor::full(DType::uint8, {1000, 1000}, 1);
  write_csv(large, folder.path("c.csv"), false);
  CHECK(read_file(folder.path("c.csv")).size() == 2 * large.nbytes());
}
