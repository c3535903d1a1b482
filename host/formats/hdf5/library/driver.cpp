#include "host/formats/hdf5/library/driver.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#ifdef H5FD_CLASS_VERSION
#include <H5FDdevelop.h>
#endif

#include "host/formats/hdf5/library/protocol.hpp"

namespace cbk::hdf5::library {
namespace {

constexpr haddr_t last_address = std::numeric_limits<off_t>::max();

struct OpenFile {
  H5FD_t known_to_library;  // has to be the first
  haddr_t allocated;
  haddr_t size;
};

OpenFile& opened(H5FD_t* file) {
  return *reinterpret_cast<OpenFile*>(file);
}

const OpenFile& opened(const H5FD_t* file) {
  return *reinterpret_cast<const OpenFile*>(file);
}

/// The parts of the file that were read.
struct Read {
  static constexpr haddr_t part = 64 << 10;
  void (*on_new_bytes)() = nullptr;
  std::vector<bool> parts;
};

Read& already_read() {
  static Read all;
  return all;
}

void note_read(haddr_t address, size_t size) {
  Read& all = already_read();
  bool is_new = false;
  for (haddr_t at = address / Read::part; at <= (address + size - 1) / Read::part && at < all.parts.size();
       ++at) {
    is_new |= !all.parts[at];
    all.parts[at] = true;
  }
  if (is_new) all.on_new_bytes();
}

H5FD_t* open(const char* /*name*/, unsigned flags, hid_t /*access*/, haddr_t /*most*/) {
  struct stat status {};
  if ((flags & H5F_ACC_RDWR) != 0 || ::fstat(checkpoint_fd, &status) != 0) return nullptr;
  auto* file = new (std::nothrow) OpenFile{};
  if (file == nullptr) return nullptr;
  file->size = static_cast<haddr_t>(status.st_size);
  already_read().parts.resize(file->size / Read::part + 1);
  return &file->known_to_library;
}

herr_t close(H5FD_t* file) {
  delete &opened(file);
  return 0;
}

/// The bytes after the file's end are zeros, as in the library's own drivers.
herr_t read(H5FD_t* /*file*/, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address, size_t size,
            void* out) {
  if (address > last_address || size > last_address - address) return -1;
  if (size > 0) note_read(address, size);
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = ::pread(checkpoint_fd, at, size, static_cast<off_t>(address));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) {
      std::memset(at, 0, size);
      return 0;
    }
    at += got;
    address += static_cast<haddr_t>(got);
    size -= static_cast<size_t>(got);
  }
  return 0;
}

H5FD_class_t driver() {
  H5FD_class_t out{};
#ifdef H5FD_CLASS_VERSION
  out.version = H5FD_CLASS_VERSION;
  out.value = 512;  // from 256 to 511 are those that the HDF Group knows
#endif
  out.name = "checkpoint";
  out.maxaddr = last_address;
  out.fc_degree = H5F_CLOSE_WEAK;
  out.open = &open;
  out.close = &close;
  out.query = [](const H5FD_t*, unsigned long* features) -> herr_t {
    *features = H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE;
    return 0;
  };
  out.get_eoa = [](const H5FD_t* file, H5FD_mem_t) { return opened(file).allocated; };
  out.set_eoa = [](H5FD_t* file, H5FD_mem_t, haddr_t address) -> herr_t {
    opened(file).allocated = address;
    return 0;
  };
  out.get_eof = [](const H5FD_t* file, H5FD_mem_t) { return opened(file).size; };
  out.read = &read;
  out.write = [](H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) -> herr_t { return -1; };
  constexpr H5FD_mem_t kinds[] = H5FD_FLMAP_DICHOTOMY;
  std::memcpy(out.fl_map, kinds, sizeof kinds);
  return out;
}

}  // namespace

herr_t read_checkpoint_only(hid_t access, void (*on_new_bytes)()) {
  already_read().on_new_bytes = on_new_bytes;
  static const H5FD_class_t checkpoint = driver();
  const hid_t id = H5FDregister(&checkpoint);
  return id < 0 ? -1 : H5Pset_driver(access, id, nullptr);
}

void forget_read() {
  auto& parts = already_read().parts;
  std::fill(parts.begin(), parts.end(), false);
}

}  // namespace cbk::hdf5::library
