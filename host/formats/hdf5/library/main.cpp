// cbk-hdf5: reads elements of datasets with the HDF5 library, for LibraryReader. Its input may be hostile:
// before it reads the first byte, the process gives up everything but its memory, the open checkpoint and
// the socket.
#include <hdf5.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "host/formats/hdf5/library/driver.hpp"
#include "host/formats/hdf5/library/protocol.hpp"

namespace {

using namespace cbk::hdf5::library;

/// Closes an identifier of the library.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  [[nodiscard]] hid_t get() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

struct Failure {
  Status status;
  std::string why;
};

/// The library's error message, from the place of the error.
std::string library_error() {
  struct Innermost {
    std::string text;
    bool lacks_memory = false;
  } innermost;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& found = *static_cast<Innermost*>(out);
        if (!found.text.empty() || error->desc == nullptr) return 0;
        found.text = error->desc;
        found.lacks_memory = error->maj_num == H5E_RESOURCE;
        return 0;
      },
      &innermost);
  H5Eclear2(H5E_DEFAULT);
  if (innermost.lacks_memory) {
    return "the HDF5 library needs more memory for it than is allowed for a file of this size (" +
           innermost.text +
           "); rewrite the file with smaller chunks, without virtual datasets (h5repack -l CHUNK=...)";
  }
  return "the HDF5 library cannot read it: " + (innermost.text.empty() ? "no reason given" : innermost.text);
}

Handle checked(hid_t id, herr_t (*close)(hid_t)) {
  if (id < 0) throw Failure{Status::damaged, library_error()};
  return {id, close};
}

void write_all(const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(socket_fd, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) std::_Exit(1);  // cbk is gone
    at += done;
    size -= static_cast<size_t>(done);
  }
}

bool read_request(Request& request) {
  char* at = reinterpret_cast<char*>(&request);
  for (size_t left = sizeof request; left > 0;) {
    const ssize_t got = ::read(socket_fd, at, left);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    left -= static_cast<size_t>(got);
  }
  return true;
}

void reply(Status status, const void* data, size_t size) {
  const Reply head{status, static_cast<uint32_t>(size)};
  write_all(&head, sizeof head);
  write_all(data, size);
}

/// Reports progress to cbk about once a second, so that it keeps waiting.
void report_new_bytes() {
  static timespec last{};
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec == last.tv_sec) return;
  last = now;
  reply(Status::reading, nullptr, 0);
}

/// Reads elements [first, first + count) in C order block by block. Each block is the longest run along one
/// dimension. The memory has the block's shape; with another shape the library copies element by element.
void read_range(hid_t dataset, hid_t type, hid_t space, const std::vector<hsize_t>& extents, hsize_t first,
                hsize_t count, char* out) {
  const size_t rank = extents.size();
  std::vector<hsize_t> start(rank);
  std::vector<hsize_t> block(rank, 1);
  while (count > 0) {
    hsize_t rest = first;
    for (size_t d = rank; d-- > 0; rest /= extents[d]) start[d] = rest % extents[d];
    // Moves to outer dimensions while the block begins at the edge and is wanted completely.
    size_t along = rank == 0 ? 0 : rank - 1;
    hsize_t inner = 1;  // elements of one step along that dimension
    while (along > 0 && start[along] == 0 && inner * extents[along] <= count) inner *= extents[along--];
    const hsize_t steps = rank == 0 ? 1 : std::min(extents[along] - start[along], count / inner);
    for (size_t d = 0; d < rank; ++d) block[d] = d < along ? 1 : d == along ? steps : extents[d];
    const bool is_selected = rank == 0 || H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr,
                                                              block.data(), nullptr) >= 0;
    if (!is_selected) throw Failure{Status::damaged, library_error()};
    const Handle memory = checked(
        rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(rank), block.data(), nullptr),
        H5Sclose);
    if (H5Dread(dataset, type, memory.get(), space, H5P_DEFAULT, out) < 0)
      throw Failure{Status::damaged, library_error()};
    first += steps * inner;
    count -= steps * inner;
    out += steps * inner * H5Tget_size(type);
  }
}

/// The type of the returned elements; the library converts numbers that do not use all of their bits.
hid_t plain_type(const Request& request) {
  const auto pick = [&](hid_t one, hid_t two, hid_t four, hid_t eight) -> hid_t {
    switch (request.size) {
      case 1:
        return one;
      case 2:
        return two;
      case 4:
        return four;
      case 8:
        return eight;
      default:
        throw Failure{Status::unsupported, "its elements have a size that no dtype has"};
    }
  };
  if (request.as == As::integer) return pick(H5T_STD_I8LE, H5T_STD_I16LE, H5T_STD_I32LE, H5T_STD_I64LE);
  if (request.as == As::unsigned_integer)
    return pick(H5T_STD_U8LE, H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U64LE);
  return request.size == 4 ? H5T_IEEE_F32LE : H5T_IEEE_F64LE;
}

/// Fails for filters without a plugin, and for elements in other files.
void refuse_unreadable(hid_t dataset) {
  const Handle made = checked(H5Dget_create_plist(dataset), H5Pclose);
  const int filters = std::max(0, H5Pget_nfilters(made.get()));
  for (unsigned i = 0; i < static_cast<unsigned>(filters); ++i) {
    unsigned flags = 0;
    unsigned info = 0;
    size_t values = 0;
    char name[64] = "";
    const H5Z_filter_t id =
        H5Pget_filter2(made.get(), i, &flags, &values, nullptr, sizeof name - 1, name, &info);
    if (id < 0) throw Failure{Status::damaged, library_error()};
    if (H5Zfilter_avail(id) > 0) continue;
    const std::string known = name[0] == '\0' ? "" : std::string(" (") + name + ")";
    throw Failure{Status::unsupported,
                  "it needs filter " + std::to_string(id) + known +
                      ", for which the HDF5 library here has no plugin; install one (for Blosc "
                      "hdf5-filter-plugin-blosc-serial), or name its folder in HDF5_PLUGIN_PATH"};
  }
  if (H5Pget_layout(made.get()) != H5D_VIRTUAL) return;
  size_t sources = 0;
  if (H5Pget_virtual_count(made.get(), &sources) < 0) throw Failure{Status::damaged, library_error()};
  for (size_t i = 0; i < sources; ++i) {
    char name[256] = "";
    if (H5Pget_virtual_filename(made.get(), i, name, sizeof name) < 0)
      throw Failure{Status::damaged, library_error()};
    if (std::string(name) != ".")
      throw Failure{Status::unsupported,
                    std::string("a virtual dataset: its data is in another file, '") + name + "'"};
  }
}

/// Fails for chunks too large for the cache, which would be unpacked for every reply.
void refuse_large_chunks(hid_t dataset, size_t element_size, uint64_t memory) {
  const Handle made = checked(H5Dget_create_plist(dataset), H5Pclose);
  hsize_t extents[H5S_MAX_RANK] = {};
  const int rank =
      H5Pget_layout(made.get()) == H5D_CHUNKED ? H5Pget_chunk(made.get(), H5S_MAX_RANK, extents) : 0;
  auto size = static_cast<double>(element_size);
  for (int i = 0; i < rank; ++i) size *= static_cast<double>(extents[i]);
  if (rank <= 0 || H5Pget_nfilters(made.get()) <= 0 || size <= static_cast<double>(chunk_cache(memory)))
    return;
  const auto mib = [](double bytes) {
    return std::to_string(static_cast<uint64_t>(bytes / (1 << 20)) + 1) + " MiB";
  };
  throw Failure{Status::damaged,
                "a chunk of " + mib(size) + " needs " + mib(copies_of_chunk * size) +
                    " of memory, more than is allowed for a file of this size; rewrite the file "
                    "with smaller chunks (h5repack -l CHUNK=...)"};
}

/// Serves elements of the datasets of one file. The last dataset stays open, with its chunks.
class Server {
 public:
  Server(hid_t file, uint64_t memory) : file_(file), memory_(memory) {}

  /// The bytes of the reply; they last until the next request.
  const std::vector<char>& serve(const Request& request) {
    reply_.clear();
    if (request.is_anew != 0) forget_read();
    open(request);
    if (request.ask == Ask::stored_size) give_stored_size();
    if (request.ask == Ask::elements) give_elements(request);
    return reply_;
  }

 private:
  void open(const Request& request) {
    if (dataset_.get() >= 0 && request.address == address_) return;
    dataset_ = Handle(-1, H5Oclose);
    Handle dataset = checked(H5Oopen_by_addr(file_, request.address), H5Oclose);
    if (H5Iget_type(dataset.get()) != H5I_DATASET) throw Failure{Status::damaged, "it is not a dataset"};
    const Handle stored = checked(H5Dget_type(dataset.get()), H5Tclose);
    if (H5Tdetect_class(stored.get(), H5T_VLEN) != 0 || H5Tdetect_class(stored.get(), H5T_REFERENCE) != 0 ||
        H5Tis_variable_str(stored.get()) != 0)
      throw Failure{Status::unsupported,
                    "elements of variable length in a layout that only the HDF5 library reads"};
    refuse_unreadable(dataset.get());
    refuse_large_chunks(dataset.get(), H5Tget_size(stored.get()), memory_);
    dataset_ = std::move(dataset);
    address_ = request.address;
  }

  /// The data of a virtual dataset is in other datasets, which count separately.
  void give_stored_size() {
    const Handle made = checked(H5Dget_create_plist(dataset_.get()), H5Pclose);
    const uint64_t size = H5Pget_layout(made.get()) == H5D_VIRTUAL ? 0 : H5Dget_storage_size(dataset_.get());
    const auto* bytes = reinterpret_cast<const char*>(&size);
    reply_.assign(bytes, bytes + sizeof size);
  }

  void give_elements(const Request& request) {
    const Handle stored = checked(H5Dget_type(dataset_.get()), H5Tclose);
    const hid_t type = request.as == As::stored ? stored.get() : plain_type(request);
    if (H5Tget_size(type) != request.size) throw Failure{Status::damaged, "its elements have another size"};
    const Handle space = checked(H5Dget_space(dataset_.get()), H5Sclose);
    const int rank = H5Sget_simple_extent_ndims(space.get());
    if (rank < 0) throw Failure{Status::damaged, library_error()};
    std::vector<hsize_t> extents(static_cast<size_t>(rank));
    H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
    hsize_t total = 1;
    for (const hsize_t extent : extents) total *= extent;
    if (request.first > total || request.count > total - request.first ||
        request.count > max_reply / request.size)
      throw Failure{Status::damaged, "it has another shape"};
    reply_.resize(request.count * request.size);
    read_range(dataset_.get(), type, space.get(), extents, request.first, request.count, reply_.data());
  }

  hid_t file_;
  uint64_t memory_;
  Handle dataset_{-1, H5Oclose};
  uint64_t address_ = 0;
  std::vector<char> reply_;
};

/// Restricts the process to memory, the open files, and exiting. Any other system call is an error.
bool lock_in() {
  const scmp_filter_ctx rules = seccomp_init(SCMP_ACT_ERRNO(EPERM));
  if (rules == nullptr) return false;
  int failed = 0;
  for (const int call :
       {SCMP_SYS(read),          SCMP_SYS(write),      SCMP_SYS(pread64),       SCMP_SYS(lseek),
        SCMP_SYS(fstat),         SCMP_SYS(newfstatat), SCMP_SYS(close),         SCMP_SYS(brk),
        SCMP_SYS(munmap),        SCMP_SYS(mremap),     SCMP_SYS(madvise),       SCMP_SYS(futex),
        SCMP_SYS(getrusage),     SCMP_SYS(getpid),     SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday),
        SCMP_SYS(sched_yield),   SCMP_SYS(exit),       SCMP_SYS(exit_group),    SCMP_SYS(rt_sigreturn),
        SCMP_SYS(rt_sigprocmask)}) {
    failed |= seccomp_rule_add(rules, SCMP_ACT_ALLOW, call, 0);
  }
  // No executable memory.
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mprotect)})
    failed |= seccomp_rule_add(rules, SCMP_ACT_ALLOW, call, 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
  failed |= seccomp_load(rules);
  seccomp_release(rules);
  return failed == 0;
}

/// Files that cbk was started with may be open here too. Shared libraries are not data, but have addresses.
bool limit_itself(uint64_t data) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::closefrom(checkpoint_fd + 1);
  constexpr uint64_t libraries = uint64_t{256} << 20;
  const rlimit no_core{0, 0};
  const rlimit memory{data, data};
  const rlimit addresses{data + libraries, data + libraries};
  return ::setrlimit(RLIMIT_CORE, &no_core) == 0 && ::setrlimit(RLIMIT_DATA, &memory) == 0 &&
         ::setrlimit(RLIMIT_AS, &addresses) == 0;
}

}  // namespace

int main(int count, char** arguments) {
  const uint64_t memory = count < 2 ? 0 : std::strtoull(arguments[1], nullptr, 10);
  if (!limit_itself(memory)) return 1;
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  for (int i = 2; i < count; ++i) H5Zfilter_avail(std::atoi(arguments[i]));  // loads the plugins
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_cache(access, 0, 10'007, chunk_cache(memory), 1.0);
  if (read_checkpoint_only(access, report_new_bytes) < 0 || !lock_in()) return 1;
  const hid_t file = H5Fopen("/checkpoint", H5F_ACC_RDONLY, access);
  const std::string why = file < 0 ? library_error() : "";
  Server server(file, memory);
  for (Request request; read_request(request);) {
    try {
      if (file < 0) throw Failure{Status::damaged, why};
      const std::vector<char>& bytes = server.serve(request);
      reply(Status::ok, bytes.data(), bytes.size());
    } catch (const Failure& failure) {
      reply(failure.status, failure.why.data(), failure.why.size());
    } catch (const std::bad_alloc&) {
      const std::string text = "it needs more memory than is allowed";
      reply(Status::damaged, text.data(), text.size());
    }
  }
  std::_Exit(0);  // nothing to write, and a damaged file may not be closed
}
