// Where the script library and the commands are.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace cbk::app {

namespace fs = std::filesystem;

/// The folder with lib/cbk and the bundled commands: $CBK_SCRIPTS, the installed share/cbk/scripts, or the
/// source tree.
fs::path scripts_folder();

/// The entries of a Lua search path that do not depend on the current folder.
std::string absolute_entries(std::string_view path);

/// `package.path` for a program whose own folder is `own` ("" for none): the library, bundled
/// converters, `own`, then the system's modules.
std::string module_path(const fs::path& scripts, const fs::path& own, std::string_view system_path);

/// The scripts of all commands by name, with '-' for a '_' in the file name. Those in the folders of
/// $CBK_PATH
/// come before the bundled ones.
std::map<std::string, fs::path> commands(const fs::path& scripts);

/// The name of a command in that spelling.
std::string command_name(std::string_view typed);

/// The script of a command. An unknown name is a `usage` error with the nearest ones.
fs::path find_command(const fs::path& scripts, std::string_view name);

}  // namespace cbk::app
