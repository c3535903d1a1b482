// What writing will take, without doing it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/formats/writer.hpp"
#include "host/streaming/write_all.hpp"

namespace cbk {

struct Forecast {
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t peak_memory = 0;  // anonymous, for blocks in flight
  size_t tensors = 0;
  std::vector<std::string> lossy;  // keys whose dtype cannot hold every value of the source's dtype
};

Forecast forecast(const Writer& writer, const StreamingOptions& options);

}  // namespace cbk
