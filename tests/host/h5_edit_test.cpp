#include <hdf5.h>

#include <cmath>

#include <catch2/catch.hpp>

#include "host/base/in_place.hpp"
#include "host/formats/h5/edit.hpp"
#include "tests/host/folder.hpp"

using namespace cbk;
using h5::FileEdit;

namespace {

/// A file as the HDF5 library writes it: `count` scalars "n000", …, an attribute, and a matrix in chunks.
void make_file(const fs::path& path, bool newest, int count, hsize_t user_block = 0) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  if (newest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_userblock(creation, user_block);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  const hid_t scalar = H5Screate(H5S_SCALAR);
  for (int i = 0; i < count; ++i) {
    const std::string name = fmt::format("n{:03}", i);
    const hid_t type = i % 2 == 0 ? H5T_STD_I64LE : H5T_STD_I32BE;
    const hid_t set = H5Dcreate2(file, name.c_str(), type, scalar, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, &i);
    H5Dclose(set);
  }
  const hsize_t extents[2] = {6, 5};
  const hsize_t chunk[2] = {4, 2};
  const hid_t space = H5Screate_simple(2, extents, nullptr);
  const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(chunked, 2, chunk);
  H5Pset_deflate(chunked, 1);
  const hid_t matrix = H5Dcreate2(file, "matrix", H5T_IEEE_F32LE, space, H5P_DEFAULT, chunked, H5P_DEFAULT);
  float values[30];
  for (int i = 0; i < 30; ++i) values[i] = static_cast<float>(i);
  H5Dwrite(matrix, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
  const hid_t note = H5Acreate2(file, "note", H5T_STD_I16BE, scalar, H5P_DEFAULT, H5P_DEFAULT);
  const int answer = 42;
  H5Awrite(note, H5T_NATIVE_INT, &answer);
  H5Aclose(note);
  H5Dclose(matrix);
  H5Pclose(chunked);
  H5Sclose(space);
  H5Sclose(scalar);
  H5Fclose(file);
  H5Pclose(creation);
  H5Pclose(access);
}

/// A value and the number of its names as the library sees them.
struct Seen {
  float value = 0;
  unsigned names = 0;
};
Seen look(const fs::path& path, const char* name) {
  Seen seen;
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  REQUIRE(file >= 0);
  const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
  REQUIRE(set >= 0);
  std::vector<float> values(30);
  REQUIRE(H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  seen.value = *std::max_element(values.begin(), values.end());
  H5O_info_t info;
  REQUIRE(H5Oget_info(set, &info) >= 0);
  seen.names = info.rc;
  H5Dclose(set);
  H5Fclose(file);
  return seen;
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

TEST_CASE("H5 edit: in place and in a copy, for every style of group") {
  const bool newest = GENERATE(false, true);
  const int count = GENERATE(4, 600);
  const hsize_t user_block = GENERATE(0, 1024);
  const Folder folder;
  const fs::path path = folder.path("a.h5");
  const fs::path copy = folder.path("b.h5");
  make_file(path, newest, count, user_block);
  const std::string before = read_file(path);

  const auto change = [](FileEdit& edit) {
    edit.set_attribute("text", "new");
    edit.link("zz", "matrix");
    edit.link("aa", "zz");
    edit.set_value("n001", Value(7));
    edit.set_value("n002", Value(2));  // as it is
    edit.set_value("matrix", Value(0.5));
  };
  {
    FileEdit edit(path);
    CHECK(edit.names().size() == static_cast<size_t>(count) + 1);
    change(edit);
    CHECK(edit.scalar("n001").as_int() == 7);
    CHECK(edit.attribute("text")->as_string() == "new");
    edit.save_as(copy, false, false);
    CHECK(read_file(path) == before);
    edit.commit(true);
  }
  CHECK(read_file(path) == read_file(copy));
  CHECK(read_file(path).substr(user_block + 512, before.size() - user_block - 512) ==
        before.substr(user_block + 512));
  CHECK(look(path, "n001").value == 7);
  CHECK(look(path, "n003").value == 3);
  CHECK(look(path, "zz").value == 29);  // the name that changed its value is no longer tied
  CHECK(look(path, "zz").names == 2);
  CHECK(look(path, "matrix").value == 0.5);
  CHECK(look(path, "matrix").names == 1);

  // A second edit of the edited file; what lies behind its end is dropped.
  write_file(path, read_file(path) + std::string(100000, 'x'), true);
  FileEdit again(path);
  CHECK(again.attribute("note")->as_int() == 42);
  CHECK(again.attribute("text")->as_string() == "new");
  CHECK_FALSE(again.is_changed());
  again.link("more", "aa");
  again.commit(false);
  CHECK(look(path, "more").names == 3);
  CHECK(fs::file_size(path) < before.size() + 2 * (fs::file_size(copy) - before.size()) + 1000);
}

TEST_CASE("H5 edit: what cannot be done leaves the file as it is") {
  const Folder folder;
  const fs::path path = folder.path("a.h5");
  make_file(path, false, 3);
  const std::string before = read_file(path);
  FileEdit edit(path);
  const auto refusal = [&](auto action) { return error_of([&] { action(edit); }); };
  CHECK_THAT(refusal([](FileEdit& e) { e.link("a", "missing"); }), Catch::Contains("'missing'"));
  CHECK_THAT(refusal([](FileEdit& e) { e.link("n001", "matrix"); }), Catch::Contains("already"));
  for (const std::string name : {"", ".", "a/b"})
    CHECK_THAT(refusal([&](FileEdit& e) { e.link(name, "matrix"); }), Catch::Contains("cannot be the name"));
  CHECK_THAT(refusal([](FileEdit& e) { e.set_value("missing", Value(1)); }), Catch::Contains("'missing'"));
  const auto refused_value = [&](const std::string& name, const Value& value) {
    return refusal([&](FileEdit& e) { e.set_value(name, value); });
  };
  for (const Value& value :
       {Value(1.5), Value(std::nan("")), Value(1e30), Value::integer("99999999999999999999")})
    CHECK_THAT(refused_value("n001", value), Catch::Contains("does not fit int"));
  CHECK_THAT(refused_value("matrix", Value(1e300)), Catch::Contains("1e+300 does not fit float32"));
  CHECK_THAT(refusal([](FileEdit& e) { (void)e.scalar("matrix"); }), Catch::Contains("[6, 5]"));
  CHECK_THAT(refusal([&](FileEdit& e) { e.save_as(path, true, false); }), Catch::Contains("itself"));
  CHECK_FALSE(edit.is_changed());
  edit.commit(false);
  CHECK(read_file(path) == before);

  // Somebody else: has it open, or changed it since it was read.
  edit.set_value("n001", Value(9));
  {
    const InPlaceFile other(path);
    CHECK_THAT(refusal([](FileEdit& e) { e.commit(false); }), Catch::Contains("another program"));
  }
  FileEdit first(path);
  first.set_value("n001", Value(8));
  first.commit(false);
  CHECK_THAT(refusal([](FileEdit& e) { e.commit(false); }), Catch::Contains("meanwhile"));
  CHECK(look(path, "n001").value == 8);
}

TEST_CASE("H5 edit: values that were never written do not take memory without end", "[memory]") {
  const Folder folder;
  const fs::path path = folder.path("empty.h5");
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t extent = 12 << 20;
  const hid_t space = H5Screate_simple(1, &extent, nullptr);
  for (const char* name : {"a", "b"})
    H5Dclose(H5Dcreate2(file, name, H5T_STD_I8LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(space);
  H5Fclose(file);
  FileEdit edit(path);
  edit.set_value("a", 7);
  CHECK_THROWS_WITH(edit.set_value("b", 7), Catch::Contains("of memory, the limit for its size"));
}

TEST_CASE("H5 edit: damaged files give an error or a file, never more") {
  const Folder folder;
  const fs::path path = folder.path("good.h5");
  make_file(path, GENERATE(false, true), 12);
  const std::string good = read_file(path);
  const fs::path bad = folder.path("bad.h5");
  uint32_t random = 99;
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    for (int edits = 0; edits < 3; ++edits) {
      random = random * 1664525 + 1013904223;
      bytes[edits == 2 ? random % 96 : random % good.size()] = static_cast<char>(random >> 24);
    }
    write_file(bad, bytes, true);
    const std::string error = error_of([&] {
      FileEdit edit(bad);
      for (const std::string& name : edit.names()) {
        error_of([&] { edit.set_value(name, Value(i)); });
        error_of([&] { edit.link(name + "'", name); });
      }
      edit.set_attribute("a", "b");
      edit.commit(false);
      CHECK(FileEdit(bad).names() == edit.names());
    });
    if (!error.empty()) CHECK(read_file(bad) == bytes);
    refused += static_cast<int>(!error.empty());
  }
  CHECK(refused > 100);
}
