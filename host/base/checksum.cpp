#include "host/base/checksum.hpp"

#include <isa-l/crc.h>
#include <zlib.h>

#include "host/base/crc32c.hpp"

namespace cbk {

uint32_t extended(Checksum kind, uint32_t sum, ByteView bytes) {
  if (kind == Checksum::crc32c) return crc32c(bytes, sum);
  return crc32_gzip_refl(sum, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

uint32_t combined(Checksum kind, uint32_t first, uint32_t second, uint64_t second_size) {
  if (kind == Checksum::crc32c) return crc32c_combine(first, second, second_size);
  return static_cast<uint32_t>(crc32_combine64(first, second, static_cast<z_off64_t>(second_size)));
}

}  // namespace cbk
