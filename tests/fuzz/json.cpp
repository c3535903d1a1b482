// JSON text: whatever parses must survive a round trip; the rest must be an Error. What an input that begins
// with 0 has behind it are pieces that are repeated.
#include <cstdlib>

#include "host/value/json.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/fuzz/unrolled.hpp"

using namespace cbk;

namespace {

Value parse(std::string_view text, const JsonReadOptions& options) {
  const MemoryBar bar(text.size());
  return parse_json(text, options);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with('\0')) text = unrolled(text.substr(1), 1 << 20);
  for (const bool python : {false, true}) {
    JsonReadOptions read;
    read.python = python;
    read.keep_spelling = python;
    if (python) read.warn = [](const std::string&) {};
    JsonWriteOptions write;
    write.python = python;
    write.ascii = !python;
    Value value;
    try {
      value = parse(text, read);
    } catch (const Error&) {
      continue;
    }
    if (!parse_json(to_json(value, write), read).equals(value)) std::abort();
  }
  return 0;
}
