#include "host/app/locations.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "host/base/error.hpp"

namespace cbk::app {
namespace {

std::vector<fs::path> command_folders(const fs::path& scripts) {
  std::vector<fs::path> folders;
  const char* value = std::getenv("CBK_PATH");
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  folders.push_back(scripts);
  return folders;
}

bool is_library(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "lib" / "cbk" / "init.lua", ignored);
}

}  // namespace

std::string command_name(std::string_view typed) {
  std::string name(typed);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

fs::path scripts_folder() {
  if (const char* chosen = std::getenv("CBK_SCRIPTS"); chosen != nullptr && *chosen != '\0') {
    if (!is_library(chosen))
      fail(Errc::usage, "CBK_SCRIPTS is '{}', but there is no lib/cbk/init.lua in it", chosen);
    return fs::absolute(chosen);
  }
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  // Installed: bin/cbk beside share/cbk. Built: the program is in build/<preset> of the source tree.
  for (const fs::path& candidate :
       {folder.parent_path() / "share" / "cbk" / "scripts", folder.parent_path().parent_path() / "scripts",
        fs::path(CBK_SOURCE_DIR) / "scripts"}) {
    if (is_library(candidate)) return candidate;
  }
  fail(
      Errc::io,
      "cannot find the script library (share/cbk/scripts beside the program); set CBK_SCRIPTS to its folder");
}

std::string absolute_entries(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const size_t end = std::min(path.find(';'), path.size());
    const std::string_view entry = path.substr(0, end);
    if (entry.starts_with('/')) out.append(out.empty() ? "" : ";").append(entry);
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return out;
}

std::string module_path(const fs::path& scripts, const fs::path& own, std::string_view system_path) {
  const std::string library = (scripts / "lib").string();
  const std::string root = scripts.parent_path().string();
  std::string path = fmt::format("{0}/?.lua;{0}/?/init.lua", library);
  path += fmt::format(";{}/?.lua", root);  // require "converters.NAME"
  if (!own.empty()) path += fmt::format(";{0}/?.lua;{0}/?/init.lua", own.string());
  return path + ";" + absolute_entries(system_path);
}

std::map<std::string, fs::path> commands(const fs::path& scripts) {
  std::map<std::string, fs::path> found;
  for (const fs::path& folder : command_folders(scripts)) {
    std::error_code error;
    for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      std::error_code ignored;
      if (it->path().extension() == ".lua" && it->is_regular_file(ignored))
        found.emplace(command_name(it->path().stem().string()), it->path());
    }
  }
  return found;
}

namespace {

/// What people call a command that has another name here.
std::string_view meant_command(std::string_view name) {
  static const std::map<std::string_view, std::string_view> meant = {
      {"cast", "copy --to-dtype"},
      {"cat", "show"},
      {"compare", "diff"},
      {"describe", "ls"},
      {"dequantize", "copy --dequantize"},
      {"detect", "identify"},
      {"extract", "export"},
      {"fold", "fold-lora-checkpoint"},
      {"graph", "plot"},
      {"head", "show"},
      {"histogram", "plot"},
      {"info", "ls"},
      {"inspect", "ls, show or stats"},
      {"keys", "ls --flat"},
      {"lint", "check"},
      {"merge-lora", "fold-lora-checkpoint"},
      {"print", "show"},
      {"prompt", "repl"},
      {"rename", "copy --rename"},
      {"reshard", "copy --shard-size"},
      {"shell", "repl"},
      {"split", "copy --shard-size"},
      {"summary", "ls or report"},
      {"tree", "ls"},
      {"validate", "check"},
      {"view", "show"},
  };
  const auto found = meant.find(name);
  return found == meant.end() ? std::string_view() : found->second;
}

}  // namespace

fs::path find_command(const fs::path& scripts, std::string_view name) {
  const auto known = commands(scripts);
  if (const auto found = known.find(command_name(name)); found != known.end()) return found->second;
  std::vector<std::string> names{"run"};
  for (const auto& [other, path] : known) names.push_back(other);
  const auto close = nearest(name, names);
  std::error_code ignored;
  const bool is_file = fs::exists(fs::path(name), ignored);
  const std::string_view meant = meant_command(name);
  fail(Errc::usage, "there is no command {}; {}", quote(name),
       !meant.empty() ? fmt::format("'cbk {}' does that", meant)
       : is_file      ? fmt::format("did you mean 'cbk {} {}'?", name.ends_with(".lua") ? "run" : "ls", name)
       : !close.empty() ? fmt::format("did you mean '{}'?", fmt::join(close, "' or '"))
                        : std::string("'cbk --help' lists them"));
}

}  // namespace cbk::app
