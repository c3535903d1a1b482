// YAML configs: whatever parses must survive a round trip; the rest must be an Error. What an input that
// begins with 0 has behind it are pieces that are repeated.
#include <cstdlib>

#include "host/config/config.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/fuzz/unrolled.hpp"

using namespace cbk;

namespace {

Value parse(std::string_view text) {
  const MemoryBar bar(text.size());
  return parse_config(text, ConfigFormat::yaml, [](const std::string&) {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with('\0')) text = unrolled(text.substr(1), 128 << 10);
  Value value;
  std::string written;
  try {
    value = parse(text);
    written = dump_config(value, ConfigFormat::yaml);
  } catch (const Error&) {
    return 0;
  }
  if (!parse_config(written, ConfigFormat::yaml).equals(value)) std::abort();
  return 0;
}
