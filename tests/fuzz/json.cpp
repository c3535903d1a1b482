// JSON text: whatever parses must survive a round trip; the rest must be an Error.
#include <cstdlib>

#include "host/value/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool python : {false, true}) {
    cbk::JsonReadOptions read;
    read.python = python;
    read.keep_spelling = python;
    cbk::JsonWriteOptions write;
    write.python = python;
    write.ascii = !python;
    cbk::Value value;
    try {
      value = cbk::parse_json(text, read);
    } catch (const cbk::Error&) {
      continue;
    }
    if (!cbk::parse_json(cbk::to_json(value, write), read).equals(value)) std::abort();
  }
  return 0;
}
