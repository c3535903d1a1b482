// Where the script library and the commands live.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cbk::app {

namespace fs = std::filesystem;

/// The folder with lib/cbk and the bundled commands: $CBK_SCRIPTS, the installed share/cbk/scripts, or the
/// source tree.
fs::path scripts_folder();

/// The entries of a Lua search path that do not depend on where somebody happens to stand.
std::string absolute_entries(std::string_view path);

/// `package.path` for a program whose own folder is `own` ("" for none): the library, `own`, then the
/// system's modules.
std::string module_path(const fs::path& scripts, const fs::path& own, std::string_view system_path);

/// The script of a command: in the folders of $CBK_PATH, then among the bundled ones. '-' and '_' are the
/// same. An unknown name is a `usage` error that tells the nearest ones.
fs::path find_command(const fs::path& scripts, std::string_view name);

/// Names of all commands, sorted.
std::vector<std::string> command_names(const fs::path& scripts);

}  // namespace cbk::app
