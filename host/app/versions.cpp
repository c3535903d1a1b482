#include "host/app/versions.hpp"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl_version.h>

#include <algorithm>
#include <string_view>

namespace cbk::app {

std::string versions() {
  std::string text = "cbk " CBK_VERSION "\n";
  std::string_view rest = CBK_LIBRARY_VERSIONS;  // "LuaJIT=2.1.0-beta3,HDF5=1.10.8"
  while (!rest.empty()) {
    const std::string_view library = rest.substr(0, rest.find(','));
    const size_t equals = library.find('=');
    text += fmt::format("  {:<17}{}\n", library.substr(0, equals), library.substr(equals + 1));
    rest.remove_prefix(std::min(library.size() + 1, rest.size()));
  }
  return text + fmt::format("  {:<17}{}.{}.{}\n", "oneDNN", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR,
                            DNNL_VERSION_PATCH);
}

}  // namespace cbk::app
