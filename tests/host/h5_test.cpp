#include <hdf5.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <ctime>
#include <map>
#include <numeric>

#include "host/checkpoint/open.hpp"
#include "host/formats/h5/reader.hpp"
#include "host/formats/h5/text.hpp"
#include "host/formats/h5/writer.hpp"
#include "host/formats/hdf5/filters.hpp"
#include "host/formats/hdf5/inspect.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/peak_memory.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;
using namespace std::string_literals;

namespace {

Tensor counting(DType dtype, Shape shape) {
  Bytes bytes(static_cast<size_t>(numel_of(shape)) * size_of(dtype));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 % 251);
  return Tensor::from_bytes(dtype, std::move(shape), std::move(bytes));
}

Value read_h5(const fs::path& path) {
  return h5::read(MappedFile::open(path), {}).root;
}

void write_h5(const Value& root, const fs::path& path, const std::string& version) {
  WriteOptions options;
  options.h5_version = version;
  auto writer = h5::make_writer(root, path, options);
  write_one(*writer);
}

/// Every kind of container and leaf that all versions keep.
Value sample_tree() {
  Value root = Value::dict();
  Value model = std::make_shared<Dict>(Dict::Kind::ordered);
  const Value tied = counting(DType::float32, {3, 5});
  model.as_dict().set("weight", tied);
  model.as_dict().set("tied", tied);
  model.as_dict().set("bf16 %/ü", counting(DType::bfloat16, {70000}));
  model.as_dict().set("empty", counting(DType::int64, {0, 4}));
  model.as_dict().set("scalar", counting(DType::float64, {}));
  model.as_dict().set("mask", Tensor::from_bytes(DType::boolean, {2}, {std::byte{1}, std::byte{0}}));
  root.as_dict().set("model", model);
  root.as_dict().set(Value(7), Value::tuple({Value(1), Value(2.5), Value(true), Value(), Value("te\"xt\n")}));
  root.as_dict().set("nothing", Value::list({Value::dict(), Value::list()}));
  root.as_dict().set("array", Value(std::make_shared<const TensorLeaf>(
                                  TensorLeaf{counting(DType::uint16, {4}), TensorLeaf::Role::ndarray})));
  root.as_dict().set("bytes", Value::bytes(std::string("a\0b", 3)));
  return root;
}

/// Equal by content, tensors element by element.
bool same_content(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::tensor:
      return a.as_tensor().dtype() == b.as_tensor().dtype() &&
             a.as_tensor().shape() == b.as_tensor().shape() && a.as_leaf().role == b.as_leaf().role &&
             a.as_tensor().to_bytes() == b.as_tensor().to_bytes();
    case Value::Kind::sequence:
      return a.as_sequence().kind == b.as_sequence().kind &&
             std::equal(a.as_sequence().items.begin(), a.as_sequence().items.end(),
                        b.as_sequence().items.begin(), b.as_sequence().items.end(), same_content);
    case Value::Kind::dict: {
      const auto& left = a.as_dict().entries();
      const auto& right = b.as_dict().entries();
      return a.as_dict().kind == b.as_dict().kind &&
             std::equal(left.begin(), left.end(), right.begin(), right.end(),
                        [](const auto& x, const auto& y) {
                          return x.first.equals(y.first) && same_content(x.second, y.second);
                        });
    }
    default:
      return a.equals(b);
  }
}

/// A handle of libhdf5, closed by the function it came with.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) { REQUIRE(id >= 0); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { close_(id_); }
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// A file made by libhdf5: what the reader must understand, and what the writer is measured against.
class Hdf5 {
 public:
  Hdf5(const fs::path& path, bool is_newest)
      : access_(H5Pcreate(H5P_FILE_ACCESS), H5Pclose), file_(create(path, is_newest), H5Fclose) {}

  hid_t id() const { return file_; }

  template <typename T>
  void add(const std::string& name, hid_t stored, hid_t memory, const std::vector<hsize_t>& extents,
           const std::vector<T>& values, const std::vector<hsize_t>& chunk = {}, int deflate = -1) {
    const Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (!chunk.empty()) H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
    if (deflate >= 0) {
      H5Pset_shuffle(creation);
      H5Pset_deflate(creation, static_cast<unsigned>(deflate));
    }
    const Handle data(H5Dcreate2(file_, name.c_str(), stored, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                      H5Dclose);
    REQUIRE(H5Dwrite(data, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  }

 private:
  hid_t create(const fs::path& path, bool is_newest) {
    if (is_newest) H5Pset_libver_bounds(access_, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access_);
  }
  Handle access_;
  Handle file_;
};

template <typename T>
std::vector<T> values_of(const Value& root, std::string_view name) {
  const Value* leaf = root.find(name);
  REQUIRE(leaf != nullptr);
  const Bytes bytes = leaf->as_tensor().to_bytes();
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("H5: a tree survives 0.5 and 0.4") {
  const Folder folder;
  const std::string version = GENERATE("0.5", "0.4");
  const Value tree = sample_tree();
  const fs::path path = folder.path((version + ".mdl"));
  write_h5(tree, path, version);
  const Checkpoint read = h5::read(MappedFile::open(path), {});
  CHECK(read.version == version);
  CHECK(same_content(read.root, tree));
  const Value& model = *read.root.find("model");
  CHECK(model.find("weight")->same(*model.find("tied")));
}

TEST_CASE("H5: what libhdf5 sees of a written file") {
  const Folder folder;
  const fs::path path = folder.path("many.mdl");
  Value root = Value::dict();
  for (int i = 0; i < 700; ++i)
    root.as_dict().set("layer." + std::to_string(i), counting(DType::float32, {i % 3, 4}));
  root.as_dict().set("in/a/group", counting(DType::int64, {2}));
  root.as_dict().set("large", Value::bytes(std::string(300000, 'x')));
  write_h5(root, path, "0.5");
  CHECK(same_content(read_h5(path), root));
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  H5G_info_t group;
  REQUIRE(H5Gget_info(file, &group) >= 0);
  CHECK(group.nlinks == 702);
  for (const int i : {0, 1, 350, 699}) {
    const Handle data(H5Dopen2(file, ("layer." + std::to_string(i)).c_str(), H5P_DEFAULT), H5Dclose);
    const Bytes expected = counting(DType::float32, {i % 3, 4}).to_bytes();
    Bytes got(expected.size());
    REQUIRE(H5Dread(data, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, got.data()) >= 0);
    CHECK(got == expected);
    CHECK(H5Aexists(data, "__TYPE__") > 0);
  }
  CHECK(H5Lexists(file, "in/a/group", H5P_DEFAULT) > 0);
  const Handle large(H5Dopen2(file, "large", H5P_DEFAULT), H5Dclose);
  const Handle attribute(H5Aopen(large, "__BYTES__", H5P_DEFAULT), H5Aclose);
  CHECK(H5Aget_storage_size(attribute) > 300000);
  // It may be edited in place.
  CHECK(H5Ldelete(file, "layer.3", H5P_DEFAULT) >= 0);
  CHECK(H5Adelete(file, "layer.3.__metadata__") >= 0);
}

TEST_CASE("H5: files of libhdf5, old and new") {
  const Folder folder;
  const bool is_newest = GENERATE(false, true);
  const fs::path path = folder.path((is_newest ? "new.h5" : "old.h5"));
  std::vector<float> floats(37 * 23);
  std::iota(floats.begin(), floats.end(), -100.0F);
  std::vector<int32_t> ints(1000);
  std::iota(ints.begin(), ints.end(), -500);
  {
    Hdf5 file(path, is_newest);
    file.add("plain", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {37, 23}, floats);
    file.add("chunked", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {37, 23}, floats, {8, 5});
    file.add("deflated", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {37, 23}, floats, {10, 23}, 6);
    file.add("one chunk", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {37, 23}, floats, {37, 23}, 1);
    file.add("big endian", H5T_STD_I32BE, H5T_NATIVE_INT32, {1000}, ints);
    file.add("many chunks", H5T_STD_I32LE, H5T_NATIVE_INT32, {1000}, ints, {3});
    for (int i = 0; i < 30; ++i)
      file.add("n" + std::to_string(i), H5T_STD_I32LE, H5T_NATIVE_INT32, {1000}, ints);
    const Handle data(H5Dopen2(file.id(), "plain", H5P_DEFAULT), H5Dclose);
    const Handle scalar(H5Screate(H5S_SCALAR), H5Sclose);
    // A type without a value here must not be in the way.
    const Handle odd(H5Acreate2(file.id(), "odd", H5T_NATIVE_LDOUBLE, scalar, H5P_DEFAULT, H5P_DEFAULT),
                     H5Aclose);
    for (int i = 0; i < 40; ++i) {
      const Handle attribute(H5Acreate2(data, ("a" + std::to_string(i)).c_str(), H5T_STD_I32LE, scalar,
                                        H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
      H5Awrite(attribute, H5T_NATIVE_INT, &i);
    }
  }
  const Value root = read_h5(path);
  CHECK(values_of<float>(root, "plain") == floats);
  CHECK(values_of<float>(root, "chunked") == floats);
  CHECK(values_of<float>(root, "deflated") == floats);
  CHECK(values_of<float>(root, "one chunk") == floats);
  CHECK(values_of<int32_t>(root, "big endian") == ints);
  CHECK(values_of<int32_t>(root, "many chunks") == ints);
  CHECK(values_of<int32_t>(root, "n29") == ints);
  // Any range of a chunked tensor, whatever its place in the chunks.
  const Tensor& chunked = root.find("chunked")->as_tensor();
  for (const int64_t begin : {0, 1, 22, 23, 24, 185, 500}) {
    std::vector<float> part(300);
    chunked.read(begin, std::as_writable_bytes(std::span(part)));
    CHECK(std::equal(part.begin(), part.end(), floats.begin() + begin));
  }
  const Value look = hdf5::inspect(path);
  for (const Value& dataset : look.find("datasets")->as_sequence().items) {
    if (dataset.find("name")->as_string() != "plain") continue;
    CHECK(dataset.find("attributes")->as_dict().size() == 40);
    CHECK(dataset.find("attributes")->find("a17")->as_int() == 17);
  }
}

TEST_CASE("H5: chunks that were never written, and what no file can hold") {
  const Folder folder;
  const fs::path path = folder.path("sparse.h5");
  const auto make = [&](const std::vector<hsize_t>& extents, const std::vector<hsize_t>& chunk) {
    const Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    const Handle space(H5Screate_simple(2, extents.data(), nullptr), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation, 2, chunk.data());
    const float fill = 1.5F;
    H5Pset_fill_value(creation, H5T_NATIVE_FLOAT, &fill);
    const Handle data(H5Dcreate2(file, "w", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                      H5Dclose);
  };
  make({20, 30}, {7, 8});
  CHECK(values_of<float>(read_h5(path), "w") == std::vector<float>(600, 1.5F));
  make({1U << 20, 1U << 20}, {1024, 1024});
  const Checkpoint sparse = open_checkpoint(path);  // what is in it can be listed
  const Tensor& tensor = sparse.root.find("w")->as_tensor();
  CHECK(tensor.nbytes() == uint64_t{1} << 42);
  std::array<std::byte, 4> first{};
  CHECK(error_of([&] { tensor.read(0, first); }).find("--max-expansion") != std::string::npos);
}

TEST_CASE("H5: chunks that were never written cost no time each") {
  const Folder folder;
  const fs::path path = folder.path("sparse.h5");
  const hsize_t extents[2] = {16, 2 << 20};
  const hsize_t chunk[2] = {1, 1};
  {
    const Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    const Handle space(H5Screate_simple(2, extents, nullptr), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation, 2, chunk);
    const int16_t fill = 0x0102;
    H5Pset_fill_value(creation, H5T_NATIVE_INT16, &fill);
    const Handle data(H5Dcreate2(file, "w", H5T_STD_I16LE, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                      H5Dclose);
    const hsize_t places[4] = {3, 5, 15, extents[1] - 1};
    H5Sselect_elements(space, H5S_SELECT_SET, 2, places);
    const hsize_t count = 2;
    const Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    const int16_t values[2] = {7, 8};
    H5Dwrite(data, H5T_NATIVE_INT16, memory, space, H5P_DEFAULT, values);
  }
  const Value root = read_h5(path);
  const std::clock_t start = std::clock();
  std::vector<int16_t> expected(16 * extents[1], 0x0102);
  expected[3 * extents[1] + 5] = 7;
  expected.back() = 8;
  CHECK((values_of<int16_t>(root, "w") == expected));
  CHECK(std::clock() - start < 3 * CLOCKS_PER_SEC);
  Bytes part(5);
  root.find("w")->as_tensor().view()->storage->read((3 * extents[1] + 4) * 2 + 1, part);
  CHECK(part == (Bytes{std::byte{1}, std::byte{7}, std::byte{0}, std::byte{2}, std::byte{1}}));
}

TEST_CASE("H5: a huge chunk is unpacked in a window, or refused", "[memory]") {
  const Folder folder;
  const fs::path path = folder.path("huge.h5");
  constexpr hsize_t bytes = 96 << 20;
  const auto make = [&](bool shuffles) {
    const Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    const hsize_t extent = bytes / 4;
    const Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation, 1, &extent);
    if (shuffles) H5Pset_shuffle(creation);
    H5Pset_deflate(creation, 1);
    const Handle data(H5Dcreate2(file, "w", H5T_STD_I32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                      H5Dclose);
    std::vector<int32_t> values(extent);
    for (size_t i = 0; i < values.size(); i += 1 << 14) values[i] = static_cast<int32_t>(i);
    REQUIRE(H5Dwrite(data, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  };
  make(false);
  REQUIRE(fs::file_size(path) < 1 << 20);
  {
    const Value root = read_h5(path);
    const PeakMemory memory;
    const Tensor& tensor = root.find("w")->as_tensor();
    for (int64_t at = 0; at < tensor.numel(); at += 1 << 14) {
      int32_t value = 0;
      tensor.read(at, std::as_writable_bytes(std::span(&value, 1)));
      REQUIRE(value == at);
    }
    CHECK(memory.growth() < 64 << 20);
  }
  make(true);
  const Value root = read_h5(path);
  const PeakMemory memory;
  const std::string why = error_of([&] { write_h5(root, folder.path("out.mdl"), "0.5"); });
  CAPTURE(why);
  for (const char* part : {"w: ", "96.0 MiB", "41.", "smaller chunks"})
    CHECK(why.find(part) != std::string::npos);
  CHECK(memory.growth() < 64 << 20);
}

TEST_CASE("H5: Fletcher-32 is the checksum of libhdf5") {
  const Folder folder;
  const fs::path path = folder.path("sums.h5");
  const hsize_t count = GENERATE(1, 2, 359, 360, 361, 720, 721, 4001, 70001);
  std::vector<uint8_t> bytes(count);
  uint32_t state = 12345;
  for (uint8_t& byte : bytes)
    byte = count % 2 == 0 ? 0xFF : static_cast<uint8_t>((state = state * 69069 + 1) >> 24);
  {
    const Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation, 1, &count);
    H5Pset_fletcher32(creation);
    const Handle data(H5Dcreate2(file, "w", H5T_STD_U8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                      H5Dclose);
    REQUIRE(H5Dwrite(data, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) >= 0);
  }
  CHECK(values_of<uint8_t>(read_h5(path), "w") == bytes);
  const std::vector<hdf5::Filter> filters{{hdf5::Filter::fletcher32, false, {}}};
  const ByteView view = std::as_bytes(std::span(bytes));
  for (const bool is_old : {false, true}) {
    uint32_t sum = hdf5::fletcher32(view);
    if (is_old) sum = (sum & 0x00FF00FF) << 8 | (sum >> 8 & 0x00FF00FF);
    std::string stored(as_text(view));
    append_le(stored, sum);
    CHECK(as_text(hdf5::decode_chunk(filters, 0, as_bytes(stored), count)) == as_text(view));
    stored[count / 2] ^= 0x10;
    CHECK_THROWS_WITH(hdf5::decode_chunk(filters, 0, as_bytes(stored), count), Catch::Contains("Fletcher"));
    CHECK_THROWS_AS(hdf5::decode_chunk(filters, 0, as_bytes("abc"), 3), Error);
  }
}

TEST_CASE("H5: what a format cannot hold is refused with the key") {
  const Folder folder;
  const auto refusal = [&](const Value& root, const std::string& version) {
    return error_of([&] { write_h5(root, folder.path("x.mdl"), version); });
  };
  const auto with = [](const std::string& key, const Value& value) {
    Value root = Value::dict();
    root.as_dict().set(key, value);
    return root;
  };
  CHECK_THAT(refusal(counting(DType::float32, {2}), "0.5"), Catch::Contains("tensor"));
  Value twice = with("a.b", 1);
  twice.as_dict().set("a", with("b", 2));
  for (const std::string version : {"0.5", "0.4"})
    CHECK_THAT(refusal(twice, version), Catch::Contains("'a.b'"));
  CHECK_THAT(refusal(with("w", counting(DType::int8, {2})), "0.5"),
             Catch::Contains("'w'") && Catch::Contains("int8"));
  CHECK_THAT(refusal(with("w", counting(DType::float8_e4m3fn, {2})), "0.4"), Catch::Contains("float8"));
  CHECK(refusal(with("w", counting(DType::int8, {2})), "0.4").empty());
  CHECK_THAT(refusal(with("n", Value::integer("123456789012345678901234567890")), "0.4"),
             Catch::Contains("'n'"));
  Value beside = with("a", counting(DType::float32, {2}));
  beside.as_dict().set("a/b", counting(DType::float32, {2}));
  CHECK_THAT(refusal(beside, "0.5"), Catch::Contains("group"));
  CHECK_THAT(refusal(with("a/../b", counting(DType::float32, {2})), "0.5"), Catch::Contains("a/../b"));
  CHECK_THAT(refusal(with("x", 1), "flat"), Catch::Contains("'x'"));
  CHECK_THAT(refusal(with("x", 1), "0.7"), Catch::Contains("0.7"));
}

TEST_CASE("H5: damage gives an error or a value, never more") {
  const Folder folder;
  const fs::path path = folder.path("good.mdl");
  const std::string version = GENERATE("0.5", "0.4");
  write_h5(sample_tree(), path, version);
  const std::string good = read_file(path);
  const auto touch = [](const Value& root) {
    for (const auto& [key, value] : root.as_dict().entries()) {
      if (value.is(Value::Kind::tensor)) (void)value.as_tensor().to_bytes(1 << 20);
    }
  };
  const fs::path bad = folder.path("bad.mdl");
  uint32_t random = 12345;
  const size_t structures = good.size() > 20000 ? good.size() - 20000 : 0;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    for (int edits = 0; edits < 3; ++edits) {
      random = random * 1664525 + 1013904223;
      bytes[edits == 2 ? random % 96 : structures + random % (good.size() - structures)] =
          static_cast<char>(random >> 24);
    }
    if (i % 7 == 0) bytes.resize(random % bytes.size());
    write_file(bad, bytes, true);
    error_of([&] { touch(read_h5(bad)); });
  }
  CHECK_THAT(error_of([&] {
               write_file(bad, good.substr(0, good.size() - 10), true);
               read_h5(bad);
             }),
             Catch::Contains("cut short"));
}

TEST_CASE("H5: data that shares bytes with other data or structures is refused") {
  const Folder folder;
  const fs::path path = folder.path("overlap.h5");
  std::vector<int32_t> ints(1000);
  std::iota(ints.begin(), ints.end(), 7);
  std::map<std::string, uint64_t> at;
  {
    Hdf5 file(path, false);
    file.add("a", H5T_STD_I32LE, H5T_NATIVE_INT32, {1000}, ints);
    file.add("b", H5T_STD_I32LE, H5T_NATIVE_INT32, {1000}, ints);
    file.add("c", H5T_STD_I32LE, H5T_NATIVE_INT32, {1000}, ints, {500});
    for (const char* name : {"a", "b", "c"}) {
      const Handle data(H5Dopen2(file.id(), name, H5P_DEFAULT), H5Dclose);
      H5O_info_t info;
      REQUIRE(H5Oget_info(data, &info) >= 0);
      at["header of "s + name] = info.addr;
      if (name != "c"s) at[name] = H5Dget_offset(data);
      for (const hsize_t chunk : {0, 1}) {
        if (name != "c"s) continue;
        haddr_t address = 0;
        REQUIRE(H5Dget_chunk_info_by_coord(data, std::array<hsize_t, 1>{chunk * 500}.data(), nullptr,
                                           &address, nullptr) >= 0);
        at["chunk " + std::to_string(chunk)] = address;
      }
    }
  }
  const std::string good = read_file(path);
  const auto place = [](uint64_t address, uint64_t size) {
    std::string out;
    append_le(out, address);
    if (size > 0) append_le(out, size);
    return out;
  };
  struct Case {
    std::string moved;
    uint64_t to;
    std::string reason;
  };
  const Case cases[] = {
      {"b", at["a"], "the data of dataset 'a' and the data of dataset 'b' overlap"},
      {"b", at["a"] + 8, "the data of dataset 'a' and the data of dataset 'b' overlap"},
      {"a", at["b"] + 3996, "the data of dataset 'b' and the data of dataset 'a' overlap"},
      {"b", 0, "in the superblock"},
      {"b", at["header of a"] - 400, "the data of dataset 'b' and the header of dataset 'a' overlap"},
      {"chunk 1", at["chunk 0"], "chunks 0 and 1 overlap"},
      {"chunk 1", at["a"] + 8, "is in other data, or in a structure of the file"},
      {"chunk 1", at["header of a"], "is in other data, or in a structure of the file"},
      {"chunk 1", at["chunk 0"] + 400, "chunks 0 and 1 overlap"},
      {"chunk 1", 0, "in the superblock"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.moved, one.to);
    const uint64_t size = one.moved == "b" || one.moved == "a" ? 4000 : 0;
    const std::string before = place(at[one.moved], size);
    std::string bytes = good;
    const size_t found = bytes.find(before);
    REQUIRE(found != std::string::npos);
    REQUIRE(bytes.find(before, found + 1) == std::string::npos);
    bytes.replace(found, before.size(), place(one.to, size));
    write_file(path, bytes, true);
    const std::string error = error_of([&] { (void)values_of<int32_t>(read_h5(path), "c"); });
    CHECK_THAT(error, Catch::Contains(one.reason));
  }
  CHECK_THAT(error_of([&] { write_h5(read_h5(path), folder.path("copy.h5"), "flat"); }),
             Catch::StartsWith("c: damaged HDF5 file: its data is at bytes 0 to 2000"));
}

namespace {

/// "a" (contiguous), "c" (chunks) and "t", a named datatype, as libhdf5 writes them; the addresses of their
/// headers.
std::map<std::string, uint64_t> write_flat(const fs::path& path) {
  std::vector<int32_t> ints(20);
  std::iota(ints.begin(), ints.end(), 7);
  Hdf5 file(path, false);
  file.add("a", H5T_STD_I32LE, H5T_NATIVE_INT32, {5, 4}, ints);
  file.add("c", H5T_STD_I32LE, H5T_NATIVE_INT32, {5, 4}, ints, {3, 4});
  const Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  REQUIRE(H5Tcommit2(file.id(), "t", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT) >= 0);
  std::map<std::string, uint64_t> headers;
  for (const char* name : {"a", "c", "t"}) {
    const Handle object(H5Oopen(file.id(), name, H5P_DEFAULT), H5Oclose);
    H5O_info_t info;
    REQUIRE(H5Oget_info(object, &info) >= 0);
    headers[name] = info.addr;
  }
  return headers;
}

/// Where messages of a version-1 object header begin, by type.
std::map<int, size_t> messages_at(const std::string& file, uint64_t header) {
  std::map<int, size_t> places;
  const size_t end = header + 16 + load_le<uint32_t>(as_bytes(file).data() + header + 8);
  for (size_t at = header + 16; at + 8 <= end;) {
    places[load_le<uint16_t>(as_bytes(file).data() + at)] = at;
    at += 8 + load_le<uint16_t>(as_bytes(file).data() + at + 2);
  }
  return places;
}

std::string flipped(std::string bytes, size_t at, int bit) {
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
  return bytes;
}

}  // namespace

TEST_CASE("H5: no flipped bit of a header leaves a dataset out, or gives it another shape") {
  const Folder folder;
  const fs::path path = folder.path("flat.h5");
  auto headers = write_flat(path);
  const std::string good = read_file(path);
  CHECK(read_h5(path).as_dict().size() == 2);  // the named datatype is no value
  for (const char* name : {"a", "c"}) {
    const size_t end = headers[name] + 16 + load_le<uint32_t>(as_bytes(good).data() + headers[name] + 8);
    for (size_t at = headers[name]; at < end; ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        CAPTURE(name, at - headers[name], bit);
        write_file(path, flipped(good, at, bit), true);
        std::optional<Value> root;
        const std::string error = error_of([&] { root = read_h5(path); });
        CHECK((error.empty() || error.find(quote(name)) != std::string::npos));
        if (!root) continue;
        REQUIRE(root->find(name) != nullptr);
        const bool is_fixed = name == "a"s;  // the shape of a dataset in chunks is stored once
        Shape shape = {5, 4};
        error_of([&] { shape = root->find(name)->as_tensor().shape(); });
        CHECK((shape == Shape{5, 4} || !is_fixed));
      }
    }
  }
}

TEST_CASE("H5: a damaged header is named, with what is missing or contradicts") {
  const Folder folder;
  const fs::path path = folder.path("flat.h5");
  auto headers = write_flat(path);
  const std::string good = read_file(path);
  constexpr int dataspace = 1;
  constexpr int datatype = 3;
  constexpr int layout = 8;
  const auto refusal = [&](const std::string& bytes) {
    write_file(path, bytes, true);
    return error_of([&] { read_h5(path); });
  };
  auto messages = messages_at(good, headers["a"]);
  CHECK_THAT(refusal(flipped(good, messages[layout], 0)),
             Catch::Contains("'a': damaged HDF5 file") && Catch::Contains("has no data layout"));
  CHECK_THAT(refusal(flipped(good, messages[datatype], 3)), Catch::Contains("has no datatype"));
  CHECK_THAT(refusal(flipped(good, messages[dataspace] + 16, 0)),
             Catch::Contains("'a': damaged HDF5 file: the shape [4, 4] of int32 needs 64 bytes, but 80 are"));
  CHECK_THAT(refusal(flipped(good, messages[dataspace] + 24, 2)), Catch::Contains("the shape [5, 0]"));
  write_file(path, flipped(good, messages_at(good, headers["c"])[dataspace] + 16, 2), true);
  CHECK_THAT(error_of([&] { (void)values_of<int32_t>(read_h5(path), "c"); }),
             Catch::Contains("a chunk begins at 3 in dimension 0, where the shape has 1"));
  messages = messages_at(good, headers["t"]);
  const std::string unknown = flipped(good, messages[datatype], 6);
  CHECK_THAT(refusal(unknown), Catch::Contains("'t'") && Catch::Contains("neither a dataset nor a group"));
  CHECK_THAT(refusal(flipped(unknown, messages[datatype] + 4, 7)), Catch::Contains("unknown type 67"));
}

TEST_CASE("H5: a group's table that counts fewer entries than it has is damage") {
  const Folder folder;
  const fs::path path = folder.path("flat.h5");
  write_flat(path);
  const std::string good = read_file(path);
  const auto refusal = [&](size_t at, char count) {
    std::string bytes = good;
    bytes[at] = count;
    write_file(path, bytes, true);
    return error_of([&] { read_h5(path); });
  };
  const size_t links = good.find("SNOD") + 6;
  const size_t tree = good.find("TREE\0"s) + 6;
  CHECK(refusal(links, 3).empty());
  for (const char count : {0, 1, 2})
    CHECK_THAT(refusal(links, count), Catch::Contains("a symbol table node has more entries than it counts"));
  CHECK_THAT(refusal(tree, 0), Catch::Contains("a group's B-tree has more entries than it counts"));
}

TEST_CASE("H5: chunks in an array for the extents that a dataset may grow to") {
  const Folder folder;
  const fs::path path = folder.path("limits.h5");
  const bool is_early = GENERATE(false, true);  // then they are one after the other, without an array
  const std::array<hsize_t, 2> extents = {4, 5};
  const std::array<hsize_t, 2> limits = {8, 9};
  const std::array<hsize_t, 2> chunk = {2, 2};
  std::vector<int32_t> values(20);
  std::iota(values.begin(), values.end(), 1);
  {
    const Hdf5 file(path, true);
    const Handle space(H5Screate_simple(2, extents.data(), limits.data()), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation, 2, chunk.data());
    if (is_early) H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
    const Handle data(H5Dcreate2(file.id(), "w", H5T_STD_I32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT),
                      H5Dclose);
    REQUIRE(H5Dwrite(data, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  }
  CHECK(values_of<int32_t>(read_h5(path), "w") == values);
}

TEST_CASE("H5: data is in no part of a structure, not even in one that is unused") {
  const Folder folder;
  const fs::path path = folder.path("unused.h5");
  const std::vector<float> values = {1, 2};
  uint64_t data_at = 0;
  {
    Hdf5 file(path, false);
    file.add("a", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {2}, values);
    file.add("c", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {2}, values, {1});
    const Handle data(H5Dopen2(file.id(), "a", H5P_DEFAULT), H5Dclose);
    data_at = H5Dget_offset(data);
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type, H5T_VARIABLE);
    const Handle scalar(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle note(H5Acreate2(file.id(), "note", type, scalar, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    const char* text = "some text";
    REQUIRE(H5Awrite(note, type, &text) >= 0);
  }
  const std::string good = read_file(path);
  std::string place;
  append_le(place, data_at);
  append_le(place, uint64_t{8});
  const size_t field = good.find(place);
  REQUIRE(field != std::string::npos);
  const auto refusal = [&](uint64_t to) {
    std::string bytes = good;
    store_le(bytes.data() + field, to);
    write_file(path, bytes, true);
    return error_of([&] {
      const Value root = read_h5(path);
      (void)values_of<float>(root, "c");
    });
  };
  CHECK(refusal(data_at).empty());
  const size_t group_tree = good.find("TREE\0"s);
  const size_t chunk_tree = good.find("TREE\1"s);
  const size_t links = good.find("SNOD");
  const size_t names = good.find("HEAP");
  const size_t texts = good.find("GCOL");
  for (const size_t unused : {group_tree + 24 + 32 * 16, links + 8 + 6 * 40, names + 24, texts + 4000}) {
    CAPTURE(unused);
    CHECK_THAT(refusal(unused), Catch::StartsWith("dataset 'a': damaged HDF5 file: its data at bytes " +
                                                  std::to_string(unused) + " to ") &&
                                    Catch::EndsWith("is in other data, or in a structure of the file"));
  }
  CHECK_THAT(refusal(chunk_tree + 24 + 64 * 32),  // found when the chunks are read
             Catch::Contains("is in other data, or in a structure of the file"));
}

TEST_CASE("H5: hex and percent encoding") {
  CHECK(h5::from_hex(h5::to_hex(std::string("\0\xff z", 4))) == std::string("\0\xff z", 4));
  CHECK_THROWS_AS(h5::from_hex("abc"), Error);
  CHECK_THROWS_AS(h5::from_hex("zz"), Error);
  CHECK(h5::percent_encode("a/b ü.~-_") == "a%2Fb%20%C3%BC.~-_");
  CHECK(h5::percent_decode("a%2Fb%20%C3%BC.~-_") == "a/b ü.~-_");
  CHECK(h5::percent_decode("100%") == "100%");
  CHECK(h5::percent_decode("%zz%4") == "%zz%4");
}
