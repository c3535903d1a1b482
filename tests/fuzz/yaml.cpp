// YAML configs: whatever parses must survive a round trip; the rest must be an Error.
#include <cstdlib>

#include "host/config/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cbk::ConfigFormat;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  cbk::Value value;
  std::string written;
  try {
    value = cbk::parse_config(text, ConfigFormat::yaml);
    written = cbk::dump_config(value, ConfigFormat::yaml);
  } catch (const cbk::Error&) {
    return 0;
  }
  if (!cbk::parse_config(written, ConfigFormat::yaml).equals(value)) std::abort();
  return 0;
}
