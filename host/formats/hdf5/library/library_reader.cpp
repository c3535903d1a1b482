#include "host/formats/hdf5/library/library_reader.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "host/base/interrupt.hpp"
#include "host/formats/hdf5/chunk_index.hpp"
#include "host/tensor/packed_storage.hpp"

namespace cbk::hdf5 {
namespace {

using library::As;
using library::Reply;
using library::Request;
using library::Status;

/// The library unpacks a chunk in a second or two. If it has read no new bytes for this long, it hangs, or
/// reads the same bytes repeatedly.
constexpr std::chrono::seconds patience{40};
/// The time for the file as a whole, for any number of datasets and reads: some seconds, and more for a large
/// file.
constexpr std::chrono::seconds always_allowed{30};
constexpr uint64_t bytes_per_second = 1 << 20;
constexpr size_t kept_windows = 2;  // of at most library::max_reply bytes

/// cbk-hdf5 is beside cbk (as built) or in libexec (as installed).
fs::path program() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* place : {"cbk-hdf5", "../cbk-hdf5", "../libexec/cbk/cbk-hdf5", "../lib/cbk/cbk-hdf5"}) {
    if (::access((folder / place).c_str(), X_OK) == 0) return folder / place;
  }
  fail(Errc::io, "it needs the program cbk-hdf5, which is not beside {}; is the installation whole?",
       quote((folder / "cbk").string()));
}

/// The environment variables by which the library and its plugins are found, and no others.
std::vector<std::string> environment() {
  std::vector<std::string> out{"HDF5_USE_FILE_LOCKING=FALSE"};
  for (const char* name : {"HDF5_PLUGIN_PATH", "LD_LIBRARY_PATH"}) {
    if (const char* value = std::getenv(name)) out.push_back(std::string(name) + "=" + value);
  }
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// A pair of connected sockets: the parent's and the child's.
std::pair<FileDescriptor, FileDescriptor> connected_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail_errno("start", "cbk-hdf5");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

class LibraryStorage final : public PackedStorage {
 public:
  LibraryStorage(std::shared_ptr<LibraryReader> reader, Request request, uint64_t count)
      : reader_(std::move(reader)), request_(request), size_(count * request.size) {}

  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] uint64_t stored_size() const override {
    const std::lock_guard lock(mutex_);
    if (!stored_) stored_ = std::min(reader_->stored_size(request_), reader_->file()->size());
    return *stored_;
  }
  void each_piece(const VisitPiece& visit) const override {
    visit({reader_->file()->path().string(), StoredPiece::unknown, stored_size(), size_});
  }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    reader_->read(request_, size_, offset, out);
  }
  [[nodiscard]] Place place() const override { return {reader_->file()->path().string(), 0}; }
  void add_files(SourceFiles& files) const override { files.insert(reader_->file()); }

 private:
  std::shared_ptr<LibraryReader> reader_;
  Request request_;  // of no elements
  uint64_t size_;
  mutable std::mutex mutex_;
  mutable std::optional<uint64_t> stored_;
};

}  // namespace

LibraryReader::~LibraryReader() {
  stop();
}

void LibraryReader::stop() noexcept {
  socket_ = FileDescriptor();
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  retried([&] { return ::waitpid(child_, nullptr, 0); });
  child_ = -1;
  loan_.reset();
}

void LibraryReader::need(const std::vector<Filter>& filters) {
  const std::lock_guard lock(mutex_);
  bool is_new = false;
  for (const Filter& filter : filters) is_new |= filters_.insert(filter.id).second;
  if (is_new) stop();
}

void LibraryReader::start() {
  const std::string path = program().string();
  const uint64_t memory = library::memory_for(file_->size());
  MemoryLoan loan(*memory_, memory);
  std::vector<std::string> arguments{path, std::to_string(memory)};
  for (const uint16_t id : filters_) arguments.push_back(std::to_string(id));
  std::vector<std::string> variables = environment();
  auto [ours, theirs] = connected_sockets();
  // Copies at other numbers: a descriptor that already has the right number would be closed on exec.
  const FileDescriptor checkpoint(::fcntl(file_->fd(), F_DUPFD_CLOEXEC, library::checkpoint_fd + 1));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), library::socket_fd);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, checkpoint.get(), library::checkpoint_fd);
  const int error = ::posix_spawn(&child_, path.c_str(), &actions, nullptr, pointers(arguments).data(),
                                  pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    child_ = -1;
    fail_errno("start", path, error);
  }
  socket_ = std::move(ours);
  loan_.emplace(std::move(loan));
}

void LibraryReader::fail_stopped() {
  stop();
  fail(Errc::format, "the HDF5 library gave up on it: the file is damaged, or needs more than {} of memory",
       format_size(library::memory_for(file_->size())));
}

void LibraryReader::refuse_spent() {
  if (!spent_.empty()) fail(Errc::format, "{}", spent_);
  const auto limit = always_allowed + std::chrono::seconds(file_->size() / bytes_per_second);
  if (without_ < patience && waited_ < limit) return;
  const bool is_patience = without_ >= patience;
  spent_ = is_patience ? fmt::format(
                             "the HDF5 library has read nothing new of the file in {} seconds; is it "
                             "damaged? Its datasets may need too much work",
                             patience.count())
                       : fmt::format(
                             "the HDF5 library has worked on the file for {} seconds, the limit for its "
                             "size; copy it with h5repack, which writes plain datasets",
                             limit.count());
  stop();
  fail(Errc::format, "{}", spent_);
}

void LibraryReader::receive(std::span<std::byte> out) {
  while (!out.empty()) {
    pollfd waiting{socket_.get(), POLLIN, 0};
    const Clock::time_point start = Clock::now();
    const int ready = retried([&] { return ::poll(&waiting, 1, 100); });
    const Clock::duration spent = Clock::now() - start;
    waited_ += spent;
    without_ += spent;
    if (interrupt_requested()) {
      stop();
      check_interrupt();
    }
    refuse_spent();
    if (ready == 0) continue;
    const ssize_t got = retried([&] { return ::recv(socket_.get(), out.data(), out.size(), 0); });
    if (got <= 0) fail_stopped();
    out = out.subspan(static_cast<size_t>(got));
  }
}

Reply LibraryReader::receive_reply() {
  Reply reply;
  do {
    receive(std::as_writable_bytes(std::span(&reply, 1)));
    if (reply.status == Status::reading) without_ = {};
  } while (reply.status == Status::reading);
  return reply;
}

void LibraryReader::ask(const Request& request, std::span<std::byte> out) {
  refuse_spent();
  if (child_ <= 0) start();
  const auto sent = retried([&] { return ::send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL); });
  if (sent != sizeof request) fail_stopped();
  const Reply reply = receive_reply();
  if (reply.status == Status::ok) {
    if (reply.size != out.size()) fail_stopped();
    return receive(out);
  }
  if (reply.size > library::max_reply) fail_stopped();
  std::string why(reply.size, '\0');
  receive(std::as_writable_bytes(std::span(why)));
  throw Error(reply.status == Status::unsupported ? Errc::unsupported : Errc::format, shown(why));
}

void LibraryReader::probe(const Request& request) {
  const std::lock_guard lock(mutex_);
  ask(request, {});
}

uint64_t LibraryReader::stored_size(const Request& dataset) {
  const std::lock_guard lock(mutex_);
  Request request = dataset;
  request.ask = library::Ask::stored_size;
  uint64_t size = 0;
  ask(request, std::as_writable_bytes(std::span(&size, 1)));
  return size;
}

const LibraryReader::Window& LibraryReader::window(const Request& dataset, uint64_t size, uint64_t offset) {
  const auto known = std::ranges::find_if(windows_, [&](const Window& w) {
    return w.address == dataset.address && offset >= w.begin && offset < w.begin + w.bytes.size();
  });
  Window found;
  if (known != windows_.end()) {
    found = std::move(*known);
    windows_.erase(known);
  } else {
    const uint64_t whole = library::max_reply / dataset.size * dataset.size;
    found = {dataset.address, offset / whole * whole, {}};
    found.bytes.resize(std::min(whole, size - found.begin));
    Request request = dataset;
    request.first = found.begin / dataset.size;
    request.count = found.bytes.size() / dataset.size;
    request.ask = library::Ask::elements;
    request.is_anew = request.first == 0 ? 1 : 0;
    if (windows_.size() == kept_windows) windows_.pop_back();  // before the next one is in memory
    ask(request, found.bytes);
  }
  return windows_.emplace_front(std::move(found));
}

void LibraryReader::read(const Request& dataset, uint64_t size, uint64_t offset, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  while (!out.empty()) {
    const Window& here = window(dataset, size, offset);
    const uint64_t skipped = offset - here.begin;
    const uint64_t count = std::min<uint64_t>(out.size(), here.bytes.size() - skipped);
    std::memcpy(out.data(), here.bytes.data() + skipped, count);
    out = out.subspan(count);
    offset += count;
  }
}

StoragePtr library_storage(std::shared_ptr<LibraryReader> reader, const Dataset& dataset,
                           uint64_t object_address, DType dtype) {
  refuse_tall_chunks(dataset);
  Request request;
  request.address = object_address;
  request.size = static_cast<uint32_t>(dataset.type.dtype() ? dataset.type.size : size_of(dtype));
  if (!dataset.type.dtype()) {
    request.as = dataset.type.kind == Datatype::Class::real ? As::real
                 : dataset.type.is_signed                   ? As::integer
                                                            : As::unsigned_integer;
  }
  reader->need(dataset.filters);
  reader->probe(request);
  const uint64_t count = dataset.space.count();
  checked_mul(count, request.size, "a dataset");
  StoragePtr storage = std::make_shared<LibraryStorage>(std::move(reader), request, count);
  return request.as == As::stored && dataset.type.is_swapped()
             ? swapped_storage(std::move(storage), dataset.type.component_size())
             : storage;
}

}  // namespace cbk::hdf5
