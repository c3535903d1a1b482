#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <thread>

#include "host/base/bytes.hpp"
#include "host/base/crc32c.hpp"
#include "host/base/file.hpp"
#include "host/base/journal.hpp"
#include "host/base/message.hpp"
#include "host/base/renames.hpp"
#include "host/base/stale.hpp"
#include "host/base/utf8.hpp"
#include "tests/host/folder.hpp"

using namespace cbk;

TEST_CASE("sizes as people write them", "[base]") {
  const auto [text, bytes] = GENERATE(table<std::string, uint64_t>({{"0", 0},
                                                                    {"4096", 4096},
                                                                    {"10GB", 10'000'000'000},
                                                                    {"512MiB", 512ULL << 20},
                                                                    {"512 mib", 512ULL << 20},
                                                                    {"256M", 256ULL << 20},
                                                                    {"1TB", 1'000'000'000'000}}));
  CHECK(parse_size(text) == bytes);
}

TEST_CASE("sizes that are none", "[base]") {
  const auto* text =
      GENERATE("", "GB", "1.5GB", "-1", "10XB", "99999999999999999999", "18446744073709551615TB");
  CHECK_THROWS_AS(parse_size(text), Error);
}

TEST_CASE("names that were meant", "[base]") {
  const std::vector<std::string> models = {"gpt2", "gpt2-headless", "llama", "bert"};
  CHECK(nearest("lama", models).at(0) == "llama");
  CHECK(nearest("gtp2", models).at(0) == "gpt2");
  CHECK(nearest("zzzzzz", models).empty());
  CHECK(nearest("foo", {"dpo", "fs"}).empty());  // two of three letters differ
  CHECK(nearest("nope", {"copy"}).empty());
  CHECK(nearest("hff", {"hf"}).at(0) == "hf");
  CHECK(nearest("Adamw", {"Adam", "AdamW", "Adamax"}).at(0) == "AdamW");
  CHECK(nearest("LLAMA", models).at(0) == "llama");
  CHECK(nearest("ab", {"AB", "ab"}).at(0) == "ab");
  CHECK(nearest("cosine", {"CosineAnnealingLR", "CosineDecayLR"}).at(0) == "CosineDecayLR");
  CHECK(nearest("fold-lora", {"fold", "fold-lora-checkpoint"}).at(0) == "fold-lora-checkpoint");
}

TEST_CASE("untrusted text in messages cannot break the line", "[base]") {
  CHECK(quote("a\nb\x1b[1m") == "'a\\x0ab\\x1b[1m'");
  CHECK(quote("ü€𝄞") == "'ü€𝄞'");
  CHECK(quote("a\xff\xed\xa0\x80\xc2\x9b") == R"('a\xff\xed\xa0\x80\xc2\x9b')");
  CHECK(quote("xü€", 2) == "'xü…'");
  CHECK(quote(std::string(500, 'x')).size() < 140);
}

namespace {
bool is_shard(std::string_view name) {
  return name.ends_with(".bin");
}
}  // namespace

TEST_CASE("a staged file appears whole or not at all", "[base]") {
  Folder folder;
  Transaction transaction;
  SECTION("committed") {
    transaction.file(folder.path("out"), false).write(0, as_bytes("hello"));
    CHECK(folder.names().empty());
    transaction.commit(false);
    CHECK(read_file(folder.path("out")) == "hello");
  }
  SECTION("given up") {
    Transaction().file(folder.path("out"), false).write(0, as_bytes("hello"));
    CHECK(folder.names().empty());
  }
  SECTION("replaced") {
    write_file(folder.path("out"), "old", false);
    CHECK_THROWS_WITH(write_file(folder.path("out"), "new", false), Catch::Contains("exists already"));
    write_file(folder.path("out"), "new", true);
    CHECK(read_file(folder.path("out")) == "new");
  }
  SECTION("taken by somebody else meanwhile") {
    transaction.file(folder.path("out"), false);
    write_file(folder.path("out"), "theirs", false);
    CHECK_THROWS_AS(transaction.commit(false), Error);
    CHECK(read_file(folder.path("out")) == "theirs");
  }
  SECTION("a name as long as can be") {
    const std::string name(255, 'x');
    write_file(folder.path(name), "old", false);
    write_file(folder.path(name), "new", true);
    CHECK(folder.names() == std::vector<std::string>{name});
    fs::remove(folder.path(name));
  }
  transaction = Transaction();
  for (const std::string& name : folder.names()) CHECK(name == "out");
}

TEST_CASE("files that belong together appear together", "[base]") {
  Folder folder;
  const auto content = [&](const std::string& name) { return read_file(folder.path(name)); };
  const bool replaces = GENERATE(false, true);
  if (replaces) {
    for (const char* name : {"a", "b"}) write_file(folder.path(name), "old", false);
    fs::create_directory(folder.path("c"));
    write_file(folder.path("c") / "old.bin", "old", false);
  }
  const std::vector<std::string> before = folder.names();
  Transaction transaction;
  const bool is_blocked = GENERATE(false, true);
  for (const char* name : {"a", "b"}) transaction.file(folder.path(name), replaces).write(0, as_bytes("new"));
  transaction.folder(folder.path("c"), replaces, is_shard).file("new.bin").write(0, as_bytes("new"));
  transaction.file(folder.path("d"), false).write(0, as_bytes("new"));
  CHECK_THROWS_WITH(transaction.file(folder.path("a"), true), Catch::Contains("two outputs would be"));
  CHECK(folder.names() == before);
  if (!is_blocked) {
    transaction.commit(true);
    CHECK(folder.names() == std::vector<std::string>{"a", "b", "c", "d"});
    for (const char* name : {"a", "b", "c/new.bin", "d"}) CHECK(content(name) == "new");
    CHECK_FALSE(fs::exists(folder.path("c/old.bin")));
    return;
  }
  write_file(folder.path("d"), "theirs", false);  // the last one cannot get its name
  CHECK_THROWS_WITH(transaction.commit(true), Catch::Contains("/d'"));
  transaction = Transaction();
  std::vector<std::string> after = before;
  after.emplace_back("d");
  CHECK(folder.names() == after);
  CHECK(content("d") == "theirs");
  if (!replaces) return;
  for (const char* name : {"a", "b", "c/old.bin"}) CHECK(content(name) == "old");
  CHECK_FALSE(fs::exists(folder.path("c/new.bin")));
}

TEST_CASE("missing folders of an output are made, and go again with what failed", "[base]") {
  Folder folder;
  const fs::path target = folder.path("a") / "b" / "x";
  {
    Transaction transaction;
    transaction.file(target, false).write(0, as_bytes("new"));
    transaction.folder(folder.path("a") / "c" / "shards", false, is_shard).file("new.bin");
    const bool is_committed = GENERATE(false, true);
    if (is_committed) {
      transaction.commit(true);
      CHECK(read_file(target) == "new");
      return;
    }
  }
  CHECK(folder.names().empty());
}

TEST_CASE("a mapped file reads the same bytes at every alignment and length", "[base]") {
  Folder folder;
  std::string content(3 * io_piece + 123, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>((i * 2654435761U) >> 13);
  write_file(folder.path("in"), content, false);
  const auto file = MappedFile::open(folder.path("in"));
  Bytes buffer(content.size() + 64);
  for (const uint64_t offset : {0U, 1U, 63U, 64U, 4099U}) {
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{20000}, io_piece, 2 * io_piece + 17}) {
      for (const size_t shift : {0U, 1U, 63U}) {
        const std::span<std::byte> out = std::span(buffer).subspan(shift, length);
        file->read(offset, out);
        REQUIRE(as_text(out) == std::string_view(content).substr(offset, length));
      }
    }
  }
  CHECK_THROWS_AS(file->read(content.size() - 10, std::span(buffer).first(11)), Error);
  fs::resize_file(folder.path("in"), 100000);
  CHECK_THROWS_WITH(file->read(90000, std::span(buffer).first(20000)), Catch::Contains("became shorter"));
}

TEST_CASE("a staged folder appears whole or not at all", "[base]") {
  Folder folder;
  Transaction transaction;
  SECTION("committed") {
    transaction.folder(folder.path("out/"), false, is_shard).file("a").write(0, as_bytes("1"));
    CHECK(folder.names().empty());
    transaction.commit(false);
    CHECK(read_file(folder.path("out") / "a") == "1");
  }
  SECTION("given up") {
    Transaction().folder(folder.path("out"), false, is_shard).file("a");
    CHECK(folder.names().empty());
  }
  SECTION("replaced, the old content gone") {
    fs::create_directory(folder.path("out"));
    write_file(folder.path("out") / "old.bin", "1", false);
    CHECK_THROWS_WITH(transaction.folder(folder.path("out"), false, is_shard),
                      Catch::Contains("exists already"));
    transaction.folder(folder.path("out"), true, is_shard).file("new.bin").write(0, as_bytes("2"));
    transaction.commit(false);
    CHECK_FALSE(fs::exists(folder.path("out") / "old.bin"));
    CHECK(fs::exists(folder.path("out") / "new.bin"));
  }
  SECTION("with a folder in it") {
    const auto stage = [&](bool overwrite) -> StagedFolder& {
      return transaction.folder(folder.path("out"), overwrite, is_shard, {"inner"});
    };
    stage(false).file("inner/a").write(0, as_bytes("1"));
    CHECK(folder.names().empty());
    transaction.commit(true);
    CHECK(read_file(folder.path("out/inner/a")) == "1");
    // Overwritten: the folder's other files stay.
    write_file(folder.path("out/inner/b.bin"), "theirs", false);
    write_file(folder.path("out/old.bin"), "1", false);
    REQUIRE(::chmod(folder.path("out/inner").c_str(), 0750) == 0);
    transaction = Transaction();
    stage(true).file("inner/a").write(0, as_bytes("2"));
    CHECK(read_file(folder.path("out/inner/a")) == "1");
    transaction.commit(true);
    CHECK(folder.names("out") == std::vector<std::string>{"inner"});
    CHECK(read_file(folder.path("out/inner/a")) == "2");
    CHECK(read_file(folder.path("out/inner/b.bin")) == "theirs");
    CHECK((fs::status(folder.path("out/inner")).permissions() & fs::perms::mask) == fs::perms(0750));
    // A folder that appears while the new one is made is not lost.
    transaction = Transaction();
    stage(true).file("inner/a").write(0, as_bytes("3"));
    const char* late = GENERATE("out/late", "out/inner/late");
    fs::create_directory(folder.path(late));
    CHECK_THROWS_WITH(transaction.commit(true), Catch::Contains("late'"));
    transaction = Transaction();
    CHECK(fs::exists(folder.path(late)));
    CHECK(read_file(folder.path("out/inner/a")) == "2");
    CHECK_THROWS_WITH(stage(true), Catch::Contains("holds more than files: late"));
  }
  for (const std::string& name : folder.names()) CHECK(name == "out");
}

TEST_CASE("what a killed run has left goes with the next one", "[base]") {
  Folder folder;
  const bool is_folder = GENERATE(false, true);
  write_file(folder.path("out.0123abcd.tmp"), "left over", false);
  fs::create_directory(folder.path("out.89ef0123.tmp"));
  write_file(folder.path("out.89ef0123.tmp") / "a", "left over", false);
  write_file(folder.path("out.00000001.old"), "replaced by the killed run", false);
  const std::vector<std::string> others = {"out.0123abcD.tmp", "out.0123abcd.tmp2", "out.0123abcde.tmp",
                                           "out2.0123abcd.tmp"};
  for (const std::string& name : others) write_file(folder.path(name), "theirs", false);
  // Another program is at work under this name.
  write_file(folder.path("out.44444444.tmp"), "in use", false);
  const FileDescriptor used(::open(folder.path("out.44444444.tmp").c_str(), O_RDONLY));
  lock_as_in_use(used);
  if (is_folder) {
    Transaction transaction;
    transaction.folder(folder.path("out"), false, is_shard);
    transaction.commit(false);
  } else {
    write_file(folder.path("out"), "old", false);
    write_file(folder.path("out"), "new", true);
  }
  std::vector<std::string> left = {"out", "out.44444444.tmp"};
  left.insert(left.end(), others.begin(), others.end());
  std::sort(left.begin(), left.end());
  CHECK(folder.names() == left);
}

TEST_CASE("what killed runs have left does not pile up, and an old file is kept until a new one is there",
          "[base]") {
  Folder folder;
  write_file(folder.path("out.0123abcd.tmp"), "half of a new one", false);
  write_file(folder.path("out.00000001.old"), "the only whole one", false);
  {
    Transaction given_up;
    given_up.file(folder.path("out"), false);
    CHECK(folder.names() == std::vector<std::string>{"out.00000001.old"});
  }
  {
    Transaction given_up;
    write_file(folder.path("out.0123abcd.tmp"), "half of a new one", false);
    given_up.folder(folder.path("out"), false, is_shard);
    CHECK(folder.names() == std::vector<std::string>{"out.00000001.old"});
  }
  write_file(folder.path("out"), "new", false);
  CHECK(folder.names() == std::vector<std::string>{"out"});
}

TEST_CASE("overwriting replaces what we write, and nothing else", "[base]") {
  Folder folder;
  SECTION("a folder with somebody's files") {
    fs::create_directories(folder.path("home") / "docs");
    CHECK_THROWS_WITH(Transaction().folder(folder.path("home"), true, is_shard), Catch::Contains("docs"));
    CHECK(folder.names() == std::vector<std::string>{"home"});
  }
  SECTION("a folder with files of others, behind a link") {
    fs::create_directories(folder.path("home"));
    fs::create_directory_symlink("home", folder.path("link"));
    write_file(folder.path("home") / "tokenizer.json", "theirs", false);
    write_file(folder.path("home") / "config.json", "old", false);
    write_file(folder.path("home") / "old.bin", "1", false);
    Transaction transaction;
    transaction.folder(folder.path("link"), true, is_shard).file("config.json").write(0, as_bytes("new"));
    transaction.commit(false);
    CHECK(read_file(folder.path("home") / "tokenizer.json") == "theirs");
    CHECK(read_file(folder.path("home") / "config.json") == "new");
    CHECK_FALSE(fs::exists(folder.path("home") / "old.bin"));
    CHECK(folder.names() == std::vector<std::string>{"home", "link"});
  }
  SECTION("a folder out of the output's folder, behind a link") {
    fs::create_directories(folder.path("out"));
    fs::create_directories(folder.path("home"));
    write_file(folder.path("home") / "old.bin", "1", false);
    fs::create_directory_symlink("../home", folder.path("out/link"));
    for (const char* name : {"out/link", "out/link/"}) {
      CHECK_THROWS_WITH(
          Transaction().folder(folder.path(name), true, is_shard),
          Catch::Contains("outside its folder") && Catch::Contains((folder.path("home")).string()));
    }
    CHECK(read_file(folder.path("home") / "old.bin") == "1");
  }
  SECTION("a pipe") {
    REQUIRE(mkfifo(folder.path("pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH(write_file(folder.path("pipe"), "x", true), Catch::Contains("not a regular file"));
  }
  SECTION("a link to nothing") {
    fs::create_symlink("gone", folder.path("link"));
    CHECK_THROWS_WITH(write_file(folder.path("link"), "x", true),
                      Catch::Contains("a symbolic link to 'gone'"));
    CHECK_THROWS_WITH(Transaction().folder(folder.path("link"), true, is_shard), Catch::Contains("'gone'"));
    CHECK(fs::is_symlink(folder.path("link")));
  }
  SECTION("the file behind a link, not the link") {
    write_file(folder.path("real"), "old", false);
    fs::create_symlink("real", folder.path("link"));
    write_file(folder.path("link"), "new", true);
    CHECK(read_file(folder.path("real")) == "new");
    CHECK(fs::is_symlink(folder.path("link")));
  }
}

TEST_CASE("a link out of the folder of an output is not replaced", "[base]") {
  const Folder folder;
  fs::create_directories(folder.path("out/below"));
  folder.write("precious", "old");
  folder.write("out/below/near", "old");
  fs::create_symlink("../precious", folder.path("out/link"));
  fs::create_symlink("link", folder.path("out/chain"));
  fs::create_symlink("below/near", folder.path("out/inside"));
  fs::create_directory_symlink("out", folder.path("by_link"));
  for (const char* name : {"out/link", "out/chain", "by_link/link"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(write_file(folder.path(name), "new", true),
                      Catch::Contains(fs::canonical(folder.path("precious")).string()) &&
                          Catch::Contains("outside its folder"));
  }
  CHECK(read_file(folder.path("precious")) == "old");
  CHECK(fs::is_symlink(folder.path("out/link")));
  write_file(folder.path("by_link/inside"), "new", true);  // the folder itself may be a link
  CHECK(read_file(folder.path("out/below/near")) == "new");
}

namespace {

/// What a killed commit of `names` leaves: the first `calls` of its changes of names, then nothing more.
/// "new" replaces "old" in all of them.
void kill_after(const Folder& folder, const std::vector<std::string>& names, int calls) {
  std::vector<Journal::Step> steps;
  for (const std::string& name : names) {
    steps.push_back({temporary_sibling(folder.path(name)), folder.path(name), true});
    std::ofstream(steps.back().temporary) << "new";
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const Journal journal(steps, true);
    Renames renames;
    int left = calls;
    const auto next = [&](const auto& change) {
      if (left-- > 0) change();
    };
    for (size_t i = steps.size(); --i > 0;) next([&] { renames.set_aside(steps[i].target); });
    next([&] { renames.exchange(steps[0].temporary, steps[0].target); });
    for (size_t i = 1; i < steps.size(); ++i)
      next([&] { renames.move(steps[i].temporary, steps[i].target); });
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
}

}  // namespace

TEST_CASE("a commit that was killed between two names is finished, or was not begun", "[base]") {
  const std::vector<std::string> names = {"m.data-00000-of-00001", "m.index", "checkpoint"};
  const int all = 2 * static_cast<int>(names.size()) - 1;
  for (int calls = 0; calls <= all; ++calls) {
    CAPTURE(calls);
    const Folder folder;
    for (const std::string& name : names) folder.write(name, "old");
    kill_after(folder, names, calls);
    const auto finished = finish_killed_commits(folder.path());
    CHECK(finished.size() == (calls == 0 || calls == all ? 0 : names.size()));
    for (const std::string& name : names) CHECK(read_file(folder.path(name)) == (calls == 0 ? "old" : "new"));
    CHECK(folder.names().size() == names.size());
    CHECK(finish_killed_commits(folder.path()).empty());
  }
}

TEST_CASE("what was changed since a commit was killed, or was never one, stays", "[base]") {
  const Folder folder;
  for (const char* name : {"a", "b"}) folder.write(name, "old");
  kill_after(folder, {"a", "b"}, 1);
  REQUIRE_FALSE(fs::exists(folder.path("b")));
  for (const std::string& name : folder.names()) {
    if (name.starts_with("b.") && read_file(folder.path(name)) == "new")
      fs::rename(folder.path(name), folder.path("taken"));
  }
  CHECK(finish_killed_commits(folder.path()).empty());
  CHECK(read_file(folder.path("a")) == "old");
  CHECK_FALSE(fs::exists(folder.path("b")));
  std::ofstream(folder.path("a.01234567.tmp")) << "cbk: files that get their names together";
  CHECK(finish_killed_commits(folder.path()).empty());
  CHECK(fs::exists(folder.path("a.01234567.tmp")));
  CHECK(finish_killed_commits(folder.path("gone")).empty());
}

TEST_CASE("what is replaced hands over its owner and mode", "[base]") {
  Folder folder;
  fs::create_directory(folder.path("out"));
  for (const char* name : {"file", "out/config.json"}) {
    write_file(folder.path(name), "old", false);
    REQUIRE(::chmod(folder.path(name).c_str(), 0640) == 0);
  }
  REQUIRE(::chmod(folder.path("out").c_str(), 02771) == 0);
  const bool may_give = ::geteuid() == 0;
  for (const char* name : {"file", "out", "out/config.json"}) {
    if (may_give) REQUIRE(::chown(folder.path(name).c_str(), 1234, 4321) == 0);
  }
  if (may_give) REQUIRE(::chmod(folder.path("out").c_str(), 02771) == 0);  // chown took the bit
  Transaction transaction;
  transaction.file(folder.path("file"), true).write(0, as_bytes("new"));
  transaction.folder(folder.path("out"), true, is_shard).file("config.json").write(0, as_bytes("new"));
  transaction.commit(false);
  for (const auto& [name, mode] : {std::pair("file", 0640), {"out", 02771}, {"out/config.json", 0640}}) {
    struct stat info {};
    REQUIRE(::stat(folder.path(name).c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == static_cast<mode_t>(mode));
    CHECK(info.st_uid == (may_give ? 1234 : ::geteuid()));
    CHECK(info.st_gid == (may_give ? 4321 : ::getegid()));
  }
  CHECK(read_file(folder.path("out/config.json")) == "new");
}

TEST_CASE("a source that another program changes is refused at the commit", "[base]") {
  Folder folder;
  write_file(folder.path("in"), "12345", false);
  const auto source = MappedFile::open(folder.path("in"));
  Transaction transaction;
  transaction.file(folder.path("out"), false);
  transaction.expect_unchanged({source});
  SECTION("in place") {
    struct timespec times[2] = {{1, 0}, {1, 1}};  // a nanosecond is enough
    REQUIRE(::utimensat(AT_FDCWD, folder.path("in").c_str(), times, 0) == 0);
  }
  SECTION("in place, with its old time") {
    struct stat before {};
    REQUIRE(::stat(folder.path("in").c_str(), &before) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the kernel's clock ticks
    {
      std::fstream file(folder.path("in"), std::ios::in | std::ios::out);
      file << "x";
    }
    struct timespec times[2] = {before.st_atim, before.st_mtim};
    REQUIRE(::utimensat(AT_FDCWD, folder.path("in").c_str(), times, 0) == 0);
  }
  SECTION("cut short") {
    fs::resize_file(folder.path("in"), 3);
    REQUIRE(read_file(folder.path("in")) == "123");
  }
  SECTION("another file of that name") {
    write_file(folder.path("in"), "12345", true);
    REQUIRE(read_file(folder.path("in")) == "12345");
  }
  CHECK_THROWS_WITH(transaction.commit(false),
                    Catch::Contains("/in'") && Catch::Contains("was changed or replaced"));
  CHECK(folder.names() == std::vector<std::string>{"in"});
}

TEST_CASE("unreadable files are reported as such", "[base]") {
  Folder folder;
  CHECK_THROWS_WITH(MappedFile::open(folder.path("none")),
                    Catch::Contains("none") && Catch::EndsWith("No such file or directory"));
  fs::create_directory(folder.path("llama"));
  write_file(folder.path("llama/model.pt"), "x", false);
  const std::string near = folder.path("llama").string();
  for (const char* name : {"lama", "lama/", "lama/config.json"})
    CHECK_THROWS_WITH(MappedFile::open(folder.path(name)),
                      Catch::EndsWith("No such file or directory; did you mean '" + near + "'?"));
  CHECK_THROWS_WITH(MappedFile::open(folder.path("llama/modle.pt")),
                    Catch::EndsWith("did you mean '" + near + "/model.pt'?"));
  CHECK_THROWS_WITH(MappedFile::open(folder.path()), Catch::Contains("directory"));
  REQUIRE(mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(MappedFile::open(folder.path("pipe")), Catch::Contains("regular file"));
  write_file(folder.path("short"), "12345", false);
  const auto file = MappedFile::open(folder.path("short"));
  CHECK(as_text(file->slice(1, 3, "x")) == "234");
  CHECK_THROWS_WITH(file->slice(3, 3, "the header"),
                    Catch::Contains("the header") && Catch::Contains("5 bytes"));
  CHECK_THROWS_AS(file->slice(UINT64_MAX, 2, "x"), Error);
}

TEST_CASE("a full disk is found when the space is reserved", "[base]") {
  Folder folder;
  Transaction transaction;
  StagedFile& file = transaction.file(folder.path("out"), false);
  try {
    file.reserve(1ULL << 55);
    FAIL("32 PiB were reserved");
  } catch (const Error& error) {
    CHECK((error.code() == Errc::no_space || error.code() == Errc::io));
  }
}

TEST_CASE("CRC-32C: known values, joining, masking, and the byte that is wrong", "[base]") {
  CHECK(crc32c(as_bytes("123456789")) == 0xE3069283);
  CHECK(crc32c({}) == 0);
  CHECK(masked_crc32c(0) == 0xa282ead8);
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * i + i / 7);
  const uint32_t whole = crc32c(as_bytes(text));
  CHECK(unmasked_crc32c(masked_crc32c(whole)) == whole);
  const size_t cut = GENERATE(0, 1, 2, 255, 4096, 4999, 5000);
  const ByteView first = as_bytes(text).first(cut);
  const ByteView second = as_bytes(text).subspan(cut);
  CHECK(crc32c(second, crc32c(first)) == whole);
  CHECK(crc32c_combine(crc32c(first), crc32c(second), second.size()) == whole);
  CHECK_FALSE(find_wrong_byte(as_bytes(text), whole));
  if (cut == text.size()) return;
  const char right =
      std::exchange(text[cut], static_cast<char>(text[cut] ^ static_cast<char>(1 + cut % 200)));
  const auto wrong = find_wrong_byte(as_bytes(text), whole);
  REQUIRE(wrong);
  CHECK(wrong->position == cut);
  CHECK(wrong->right == static_cast<std::byte>(right));
}

TEST_CASE("untrusted text is shown without characters that cannot be seen", "[base]") {
  struct Range {
    uint32_t first, last;
  };
  const std::vector<Range> hidden = {
      {0x00AD, 0x00AD}, {0x034F, 0x034F},   {0x061C, 0x061C},   {0x115F, 0x1160}, {0x17B4, 0x17B5},
      {0x180B, 0x180E}, {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x2064}, {0x2066, 0x2069},
      {0x3164, 0x3164}, {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0}, {0xFFF9, 0xFFFB},
      {0x2800, 0x2800}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF},
  };
  for (const Range& range : hidden) {
    for (uint32_t character = range.first; character <= range.last; ++character) {
      std::string text = "a";
      append_utf8(text, character);
      std::string escaped = "a";
      for (const char byte : text.substr(1)) escaped += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
      CAPTURE(character);
      CHECK(shown(text) == escaped);
      CHECK(quote(text) == "'" + escaped + "'");
      CHECK(one_line(text) == escaped);
    }
  }
  const std::string seen = "aé ü€𝄞 漢字 कि العربية 👩 ﬁ";
  CHECK(shown(seen) == seen);
}

TEST_CASE("untrusted text is shown without controls, on one line") {
  const std::string evil = "a\x1b[2J\n\tb\x7f\xc2\x9b\xe2\x80\xae\xed\xa0\x80\xff é";
  CHECK(shown(evil) == "a\\x1b[2J\\x0a\\x09b\\x7f\\xc2\\x9b\\xe2\\x80\\xae\\xed\\xa0\\x80\\xff é");
  CHECK(shown(evil, true).starts_with("a\\x1b[2J\n\tb\\x7f"));
  CHECK(quote("\x1b") == "'\\x1b'");
  CHECK(one_line("first:\n  second\r\n\tthird\x1b\n") == "first: second; third\\x1b");
}

TEST_CASE("messages are broken between words", "[base]") {
  CHECK(cbk::broken_lines("cbk: one two three", 12) == "cbk: one two\n  three");
  CHECK(cbk::broken_lines("one  two", 8) == "one  two");
  CHECK(cbk::broken_lines("one  two", 7) == "one\n  two");
  CHECK(cbk::broken_lines("a verylongword b", 5) == "a\n  verylongword\n  b");
  CHECK(cbk::broken_lines("層層 層層 層", 9) == "層層 層層\n  層");
  CHECK(cbk::broken_lines("", 5).empty());
  CHECK(cbk::broken_lines("  x", 2) == "  x");
}
