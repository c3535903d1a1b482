// cbk.fs: files and folders, for scripts that arrange inputs and outputs.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "bindings/modules.hpp"
#include "host/base/entries.hpp"
#include "host/base/file.hpp"
#include "host/base/file_lock.hpp"
#include "host/base/inside.hpp"
#include "host/base/named_files.hpp"
#include "host/base/stale.hpp"
#include "host/base/transaction.hpp"

namespace cbk::lua {
namespace {

[[noreturn]] void fail_with(std::string_view action, const fs::path& path, const std::error_code& error) {
  fail_errno(action, path.string(), error.value());
}

int push_path(lua_State* L, const fs::path& path) {
  push(L, std::string_view(path.native()));
  return 1;
}

int exists(lua_State* L) {
  std::error_code ignored;
  lua_pushboolean(L, fs::exists(check_path(L, 1), ignored));
  return 1;
}

int is_dir(lua_State* L) {
  std::error_code ignored;
  lua_pushboolean(L, fs::is_directory(check_path(L, 1), ignored));
  return 1;
}

int make_dir(lua_State* L) {
  const fs::path path = check_path(L, 1);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_with("create the folder", path, error);
  return 0;
}

int list(lua_State* L) {
  const fs::path path = check_path(L, 1);
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries_of(path)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  push_strings(L, names);
  return 1;
}

std::vector<fs::path> check_paths(lua_State* L, int index) {
  std::vector<fs::path> out;
  if (lua_isnoneornil(L, index)) return out;
  if (!lua_istable(L, index)) fail(Errc::usage, "argument {} should be a list of folders", index);
  const auto count = static_cast<int>(lua_objlen(L, index));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, i);
    out.push_back(check_path(L, -1));
    lua_pop(L, 1);
  }
  return out;
}

/// cbk.fs.beside(folder, name, allowed): the path of a file that the user did not name; nil if it is missing.
/// A link out of the folder is an error, except to allowed folders: see NamedFiles.
int beside(lua_State* L) {
  const fs::path folder = check_path(L, 1);
  const auto file =
      NamedFiles(folder, check_paths(L, 3)).find(std::string(check_string(L, 2)), NamedFiles::Link::followed);
  return file ? push_path(L, folder / check_string(L, 2)) : 0;
}

int read(lua_State* L) {
  push(L, std::string_view(read_file(check_path(L, 1))));
  return 1;
}

int write(lua_State* L) {
  const Options options(L, 3, {"overwrite"});
  write_file(check_path(L, 1), check_string(L, 2), options.flag("overwrite"));
  return 0;
}

/// cbk.fs.write_all({ path = text }, options): all of them, or none.
int write_all(lua_State* L) {
  const Options options(L, 2, {"overwrite"});
  const Value files = to_value(L, 1);
  Transaction transaction;
  for (const auto& [path, text] : files.as_dict().entries())
    transaction.file(path.as_string(), options.flag("overwrite")).write(0, as_bytes(text.as_string()));
  transaction.commit(false);
  return 0;
}

int size(lua_State* L) {
  const fs::path path = check_path(L, 1);
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) fail_with("read the size of", path, error);
  push_unsigned(L, bytes);
  return 1;
}

/// cbk.fs.modified(path): when a file or folder was changed last, in seconds since 1970.
int modified(lua_State* L) {
  const fs::path path = check_path(L, 1);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_errno("read the time of", path.string(), errno);
  lua_pushnumber(
      L, static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec));
  return 1;
}

int remove(lua_State* L) {
  const fs::path path = check_path(L, 1);
  const Options options(L, 2, {"recursive"});
  std::error_code error;
  if (options.flag("recursive")) {
    fs::remove_all(path, error);
  } else {
    fs::remove(path, error);
  }
  if (error) fail_with("remove", path, error);
  return 0;
}

/// A new empty folder below $TMPDIR.
int temp_dir(lua_State* L) {
  std::error_code error;
  fs::path pattern = fs::temp_directory_path(error);
  if (error) fail_with("find the folder for temporary files", "", error);
  std::string name = (pattern / "cbk-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail_errno("create a folder like", name);
  return push_path(L, name);
}

/// cbk.fs.temporary(target): the name of a file beside `target` that does not outlive the program. Those of
/// programs that were killed are removed.
int temporary(lua_State* L) {
  const fs::path target = check_path(L, 1);
  remove_unfinished({target});
  const fs::path name = temporary_sibling(target);
  remember_temporary(name);
  return push_path(L, name);
}

/// cbk.fs.hold(folder): keeps a folder for this program until it ends; false if another one has it. File
/// systems without locks are accepted.
int hold(lua_State* L) {
  static std::vector<FileDescriptor> held;
  FileDescriptor fd = open_file("open", check_path(L, 1), O_RDONLY | O_DIRECTORY);
  const bool is_free = lock_file(fd) != FileLock::of_another;
  if (is_free) held.push_back(std::move(fd));
  lua_pushboolean(L, is_free);
  return 1;
}

int join(lua_State* L) {
  fs::path path = check_path(L, 1);
  for (int i = 2; i <= lua_gettop(L); ++i) path /= check_path(L, i);
  return push_path(L, path);
}

/// cbk.fs.inside(folder, name): the path of an output with a name from data.
int path_inside(lua_State* L) {
  return push_path(L, inside(check_path(L, 1), std::string(check_string(L, 2))));
}

int basename(lua_State* L) {
  return push_path(L, check_path(L, 1).filename());
}

int dirname(lua_State* L) {
  const fs::path parent = check_path(L, 1).parent_path();
  return push_path(L, parent.empty() ? fs::path(".") : parent);
}

/// cbk.fs.folder_of(path): a folder itself, or the folder that a file is in.
int folder_of_path(lua_State* L) {
  std::error_code ignored;
  const fs::path path = check_path(L, 1);
  return fs::is_directory(path, ignored) ? push_path(L, path) : dirname(L);
}

int absolute(lua_State* L) {
  std::error_code error;
  const fs::path path = check_path(L, 1);
  const fs::path full = fs::absolute(path, error);
  if (error) fail_with("find", path, error);
  return push_path(L, full.lexically_normal());
}

/// The path without symbolic links, as far as it exists.
int real(lua_State* L) {
  std::error_code error;
  const fs::path path = check_path(L, 1);
  const fs::path found = fs::weakly_canonical(fs::absolute(path), error);
  if (error) fail_with("find", path, error);
  return push_path(L, found);
}

/// The running program, for scripts that call cbk again.
int program_path(lua_State* L) {
  push(L, std::string_view(fs::read_symlink("/proc/self/exe").native()));
  return 1;
}

}  // namespace

void bind_fs(lua_State* L) {
  static const luaL_Reg functions[] = {{"exists", guarded<exists>},
                                       {"beside", guarded<beside>},
                                       {"real", guarded<real>},
                                       {"is_dir", guarded<is_dir>},
                                       {"mkdir", guarded<make_dir>},
                                       {"list", guarded<list>},
                                       {"read", guarded<read>},
                                       {"write", guarded<write>},
                                       {"write_all", guarded<write_all>},
                                       {"size", guarded<size>},
                                       {"modified", guarded<modified>},
                                       {"remove", guarded<remove>},
                                       {"program", guarded<program_path>},
                                       {"temp_dir", guarded<temp_dir>},
                                       {"temporary", guarded<temporary>},
                                       {"hold", guarded<hold>},
                                       {"join", guarded<join>},
                                       {"basename", guarded<basename>},
                                       {"dirname", guarded<dirname>},
                                       {"folder_of", guarded<folder_of_path>},
                                       {"absolute", guarded<absolute>},
                                       {"inside", guarded<path_inside>},
                                       {nullptr, nullptr}};
  set_group(L, "fs", functions);
}

}  // namespace cbk::lua
