#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "host/base/named_files.hpp"
#include "tests/host/folder.hpp"

namespace cbk {
namespace {

/// A checkpoint's folder `run` beside what it must not reach.
struct Places {
  Places() {
    fs::create_directories(folder.path("run/parts"));
    fs::create_directories(folder.path("other/deep"));
    folder.write("run/a", "a");
    folder.write("run/parts/b", "b");
    folder.write("other/secret", "secret");
    folder.write("other/deep/c", "c");
    fs::create_symlink("../other/secret", folder.path("run/link"));
    fs::create_symlink("a", folder.path("run/near"));
    fs::create_symlink("nowhere", folder.path("run/dangling"));
    fs::create_directory_symlink("../other", folder.path("run/linked"));
    fs::create_directory_symlink("parts", folder.path("run/linked_near"));
    fs::create_directory_symlink("run", folder.path("run_by_link"));
  }
  [[nodiscard]] std::string text(const NamedFiles& files, const std::string& name,
                                 NamedFiles::Link link = NamedFiles::Link::refused) const {
    const auto file = files.find(name, link);
    return file ? std::string(as_text(file->bytes())) : "nothing";
  }
  [[nodiscard]] Errc error(const NamedFiles& files, const std::string& name,
                           NamedFiles::Link link = NamedFiles::Link::refused) const {
    try {
      (void)files.open(name, link);
    } catch (const Error& error) {
      return error.code();
    }
    return Errc::internal;
  }
  Folder folder;
};

}  // namespace

TEST_CASE("named files: a name leads down from the folder or nowhere", "[base]") {
  const Places places;
  const NamedFiles files(places.folder.path("run"), {});
  CHECK(places.text(files, "a") == "a");
  CHECK(places.text(files, "./parts//b") == "b");
  CHECK(places.text(NamedFiles(places.folder.path("run_by_link"), {}), "a") == "a");  // as the user named it
  CHECK(places.text(files, "gone") == "nothing");
  CHECK(places.text(files, "a/b") == "nothing");
  CHECK(places.error(files, "gone") == Errc::io);
  for (const std::string name :
       {"..", ".", "../run/a", "parts/../a", "parts/..", "parts/", "/etc/passwd", "/", "link", "near",
        "linked/secret", "linked/deep/c", "linked_near/b", "dangling", "./link"}) {
    CAPTURE(name);
    CHECK(places.error(files, name) == Errc::external);
  }
  CHECK(places.error(files, (places.folder.path("run") / "a").string()) == Errc::external);
  CHECK(places.error(files, "") == Errc::format);
  CHECK(places.error(files, std::string("a\0b", 3)) == Errc::format);
  CHECK_THROWS_WITH(files.open("link"),
                    Catch::Contains("'link', which is a symbolic link; --allow-external '" +
                                    fs::canonical(places.folder.path("other")).string() + "'"));
  CHECK_THROWS_WITH(files.open("/etc/passwd"), Catch::Contains("allow_external = { '/etc' }"));
}

TEST_CASE("named files: a symbolic link that is followed ends below the folder", "[base]") {
  const Places places;
  const Folder& folder = places.folder;
  fs::create_symlink("near", folder.path("run/chain"));
  fs::create_symlink("link", folder.path("run/chain_out"));
  fs::create_symlink("../run/parts/../a", folder.path("run/around"));
  fs::create_symlink("loop", folder.path("run/loop"));
  const NamedFiles files(folder.path("run"), {});
  using enum NamedFiles::Link;
  for (const std::string name : {"near", "chain", "around"}) CHECK(places.text(files, name, followed) == "a");
  CHECK(places.text(files, "linked_near/b", followed) == "b");
  CHECK(places.text(files, "dangling", followed) == "nothing");
  for (const std::string name : {"link", "chain_out", "linked/secret", "linked/gone", "../other/secret"}) {
    CAPTURE(name);
    CHECK(places.error(files, name, followed) == Errc::external);
  }
  CHECK(places.error(files, "loop", followed) == Errc::io);
  CHECK(places.text(NamedFiles(folder.path("run"), {folder.path("other")}), "link", followed) == "secret");
  CHECK_THROWS_WITH(files.open("link", followed), Catch::Contains("a symbolic link out of its folder") &&
                                                      Catch::Contains("--allow-external"));
}

TEST_CASE("named files: links lead to the blobs of their own cache", "[base]") {
  const Folder folder;
  for (const char* place : {"models--a--b/snapshots/1/deep", "models--a--b/blobs/more", "models--c--d/blobs",
                            "models--e--f/snapshots/1", "snapshots/1"})
    fs::create_directories(folder.path(place));
  folder.write("models--a--b/blobs/x", "x");
  folder.write("models--a--b/refs", "refs");
  folder.write("models--c--d/blobs/y", "y");
  const auto link = [&](const char* target, const std::string& name) {
    fs::create_symlink(target, folder.path(name));
  };
  link("../../blobs/x", "models--a--b/snapshots/1/x");
  link("../../../blobs/x", "models--a--b/snapshots/1/deep/x");
  link("../../refs", "models--a--b/snapshots/1/refs");
  link("../../../models--c--d/blobs/y", "models--a--b/snapshots/1/y");
  link("../../blobs/hop", "models--a--b/snapshots/1/hop");
  link("../refs", "models--a--b/blobs/hop");
  fs::create_directory_symlink("../models--c--d/blobs", folder.path("models--e--f/blobs"));
  link("../../blobs/y", "models--e--f/snapshots/1/y");
  fs::create_directory_symlink("models--a--b/snapshots/1", folder.path("model"));
  const auto read = [&](const char* place, const std::string& name) -> std::string {
    try {
      return std::string(
          as_text(NamedFiles(folder.path(place), {}).open(name, NamedFiles::Link::followed)->bytes()));
    } catch (const Error& error) {
      return std::string(name_of(error.code()));
    }
  };
  CHECK(read("models--a--b/snapshots/1", "x") == "x");
  CHECK(read("models--a--b/snapshots/1/deep", "x") == "x");
  CHECK(read("model", "x") == "x");
  for (const char* name : {"refs", "y", "hop"}) CHECK(read("models--a--b/snapshots/1", name) == "external");
  CHECK(read("models--e--f/snapshots/1", "y") == "external");  // its blobs are those of another one
}

TEST_CASE("named files: more folders may be allowed", "[base]") {
  const Places places;
  const Folder& folder = places.folder;
  const NamedFiles files(folder.path("run"), {folder.path("other/deep"), folder.path("run_by_link")});
  CHECK(places.text(files, "../other/deep/c") == "c");
  CHECK(places.text(files, folder.path("other/deep/c").string()) == "c");
  CHECK(places.text(files, "linked/deep/c") == "c");
  CHECK(places.text(files, "near") == "a");
  CHECK(places.text(files, "../other/deep/gone") == "nothing");
  for (const std::string name : {"link", "linked/secret", "../other/secret", "../other/deep/../secret",
                                 "../other/deep", "../other/deepest"}) {
    CAPTURE(name);
    CHECK(places.error(files, name) == Errc::external);
  }
  CHECK_THROWS_WITH(NamedFiles(folder.path("run"), {folder.path("gone")}), Catch::Contains("not a folder"));
}

TEST_CASE("named files: what is no regular file is refused, and does not hang", "[base]") {
  const Places places;
  ::mkfifo(places.folder.path("run/pipe").c_str(), 0600);
  fs::create_symlink("/dev/zero", places.folder.path("run/zero"));
  const NamedFiles files(places.folder.path("run"), {"/dev"});
  CHECK(places.error(files, "pipe") == Errc::io);
  CHECK(places.error(files, "parts") == Errc::io);
  CHECK(places.error(files, "zero", NamedFiles::Link::followed) == Errc::io);
  CHECK(places.error(files, "/dev/zero") == Errc::io);
}

}  // namespace cbk
