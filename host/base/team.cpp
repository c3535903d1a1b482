#include "host/base/team.hpp"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/launcher.hpp"
#include "host/base/stale.hpp"
#include "host/base/transport.hpp"

namespace cbk {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds pulse(1000);  // between two signs of life
constexpr int usual_patience = 25;   // seconds without one
constexpr seconds farewell(5);       // for the others to end after a failure
constexpr std::chrono::microseconds shortest_rest(50), longest_rest(10'000);

enum class Kind : uint8_t { data, alive, failed, stop, bye };

int patience() {
  const char* text = std::getenv("CBK_TEAM_TIMEOUT");
  const int given = text == nullptr ? 0 : std::atoi(text);
  return given > 0 ? given : usual_patience;
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

class SoloTeam final : public Team {};

/// The messages of one other rank.
struct Peer {
  std::deque<std::string> data;
  Clock::time_point heard = Clock::now();
  std::string host;
  uint64_t done = 0;
  bool has_left = false;
};

class ConnectedTeam final : public Team {
 public:
  explicit ConnectedTeam(decltype(&cbk_transport_open) open) {
    std::promise<bool> started;
    pump_ = std::thread([&, open] {
      transport_ = open();
      if (transport_ != nullptr) peers_.resize(static_cast<size_t>(size()));
      if (transport_ != nullptr) peers_[static_cast<size_t>(rank())].has_left = true;
      started.set_value(transport_ != nullptr);
      if (transport_ != nullptr) pump();
    });
    auto is_started = started.get_future();
    if (is_started.wait_for(seconds(patience_ + patience_ / 2)) != std::future_status::ready) {
      std::fputs("cbk: MPI does not start: a rank does not answer\n", stderr);
      ::_exit(1);
    }
    if (is_started.get()) return;
    pump_.join();
    fail(Errc::unsupported, "MPI does not start");
  }

  [[nodiscard]] int rank() const override { return transport_->rank; }
  [[nodiscard]] int size() const override { return transport_->size; }

  std::string from_first(std::string mine) override {
    if (!is_first()) return next_data(0);
    for (int to = 1; to < size(); ++to) post(to, Kind::data, mine);
    return mine;
  }

  std::vector<std::string> to_first(std::string mine) override {
    if (!is_first()) {
      post(0, Kind::data, std::move(mine));
      return {};
    }
    std::vector<std::string> all{std::move(mine)};
    for (int from = 1; from < size(); ++from) all.push_back(next_data(from));
    return all;
  }

  std::vector<std::string> all_to_all(std::vector<std::string> mine) override {
    for (int to = 0; to < size(); ++to)
      if (to != rank()) post(to, Kind::data, std::move(mine[static_cast<size_t>(to)]));
    std::vector<std::string> out;
    out.reserve(mine.size());
    for (int from = 0; from < size(); ++from)
      out.push_back(from == rank() ? std::move(mine[static_cast<size_t>(from)]) : next_data(from));
    return out;
  }

  void set_done(uint64_t bytes) override { done_ = bytes; }

  [[nodiscard]] uint64_t done_elsewhere() const override {
    const std::lock_guard lock(mutex_);
    uint64_t total = 0;
    for (const Peer& peer : peers_) total += peer.done;
    return total;
  }

  bool report_failure(const std::string& message) override {
    const std::lock_guard lock(mutex_);
    if (has_failed_) return false;
    has_failed_ = true;
    for (int to = 0; to < size(); ++to)
      if (to != rank() && (is_first() || to == 0))
        queue(to, is_first() ? Kind::stop : Kind::failed,
              is_first() ? "" : fmt::format("{} {}", host_, message));
    return is_first();
  }

  [[nodiscard]] std::string failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  [[nodiscard]] bool is_stopped() const override {
    const std::lock_guard lock(mutex_);
    return is_stopped_;
  }

  void await_end() override {
    if (!pump_.joinable()) return;
    std::unique_lock lock(mutex_);
    for (int to = 0; to < size(); ++to)
      if (to != rank()) queue(to, Kind::bye, "");
    const auto all_left = [&] {
      return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.has_left; }) &&
             outgoing_.empty();
    };
    arrived_.wait(lock, [&] { return all_left() || has_failed_; });
    is_clean_ = all_left() || arrived_.wait_for(lock, farewell, all_left);
  }

  void leave() override {
    if (!pump_.joinable()) return;
    auto is_closed = closed_.get_future();
    is_closing_ = true;
    if (is_closed.wait_for(seconds(patience_)) != std::future_status::ready) {
      // MPI's own end waits for all ranks, without a limit.
      std::fputs("cbk: MPI does not end: a rank or its node does not answer; all work was done before\n",
                 stderr);
      ::_exit(1);
    }
    pump_.join();
  }

 private:
  struct Outgoing {
    int to;
    Kind kind;
    std::string bytes;
  };

  void queue(int to, Kind kind, std::string payload) {  // with the lock
    outgoing_.push_back({to, kind, std::move(payload)});
    has_outgoing_.notify_one();
  }

  void post(int to, Kind kind, std::string payload) {
    constexpr size_t most_bytes = size_t{1} << 30;  // MPI counts in ints
    if (payload.size() > most_bytes)
      fail(Errc::unsupported, "ranks cannot exchange {} bytes at once", payload.size());
    const std::lock_guard lock(mutex_);
    queue(to, kind, std::move(payload));
  }

  std::string next_data(int from) {
    std::unique_lock lock(mutex_);
    std::deque<std::string>& data = peers_[static_cast<size_t>(from)].data;
    is_awaiting_ = true;
    while (data.empty()) {
      if (peers_[static_cast<size_t>(from)].has_left && !has_failed_)
        fail(Errc::usage,
             "rank {} has ended, and rank {} waits for it: all ranks must write the same outputs", from,
             rank());
      arrived_.wait_for(lock, milliseconds(50));
      if (data.empty()) check_interrupt();
    }
    is_awaiting_ = false;
    std::string out = std::move(data.front());
    data.pop_front();
    return out;
  }

  // --- the thread of the connection

  void pump() {
    auto last_pulse = Clock::now() - pulse;
    auto rest = shortest_rest;
    while (!is_closing_) {
      const bool has_sent = send_all();
      const bool has_received = receive_all();
      rest = has_sent || has_received ? shortest_rest : std::min(2 * rest, longest_rest);
      if (const auto since = Clock::now() - last_pulse; since >= pulse) {
        const std::lock_guard lock(mutex_);
        // This process was stopped itself, and the others may have been, as by a queue that suspends a job.
        if (since > 3 * pulse)
          for (Peer& peer : peers_) peer.heard = Clock::now();
        last_pulse = Clock::now();
        for (int to = is_first() ? 1 : 0; to < (is_first() ? size() : 1); ++to)
          queue(to, Kind::alive, fmt::format("{} {}", done_.load(), host_));
        watch();
      }
      // MPI has no call that waits for a message or for this program, so it is asked again and again.
      std::unique_lock lock(mutex_);
      has_outgoing_.wait_for(lock, is_awaiting_ ? shortest_rest : rest,
                             [this] { return !outgoing_.empty(); });
    }
    end();
  }

  bool send_all() {
    std::deque<Outgoing> sent;
    {
      const std::lock_guard lock(mutex_);
      sent.swap(outgoing_);
    }
    for (Outgoing& each : sent) transport_->send(each.to, static_cast<int>(each.kind), std::move(each.bytes));
    if (!sent.empty()) arrived_.notify_all();
    return !sent.empty();
  }

  bool receive_all() {
    bool has_any = false;
    while (std::optional<Message> message = transport_->receive()) {
      take(message->from, static_cast<Kind>(message->kind), std::move(message->bytes));
      has_any = true;
    }
    if (has_any) arrived_.notify_all();
    return has_any;
  }

  void take(int from, Kind kind, std::string payload) {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(from)];
    peer.heard = Clock::now();
    switch (kind) {
      case Kind::data:
        peer.data.push_back(std::move(payload));
        break;
      case Kind::alive:
        if (const size_t space = payload.find(' '); space != std::string::npos) {
          peer.done = std::strtoull(payload.c_str(), nullptr, 10);
          peer.host = payload.substr(space + 1);
        }
        break;
      case Kind::failed:
        stop(fmt::format("rank {} on {}", from, payload.replace(payload.find(' '), 1, ": ")));
        break;
      case Kind::stop:
        stop("");
        break;
      case Kind::bye:
        peer.has_left = true;
        break;
    }
  }

  /// Stops this rank, and from rank 0 all others. With the lock.
  void stop(std::string why) {
    if (has_failed_) return;
    has_failed_ = is_stopped_ = true;
    failure_ = std::move(why);
    if (is_first())
      for (int to = 1; to < size(); ++to) queue(to, Kind::stop, "");
    request_interrupt();
  }

  /// With the lock.
  void watch() {
    const auto limit = Clock::now() - seconds(patience_);
    for (int other = 0; other < size(); ++other) {
      const Peer& peer = peers_[static_cast<size_t>(other)];
      const bool is_watched = other != rank() && (is_first() || other == 0) && !peer.has_left;
      if (is_watched && peer.heard < limit)
        stop(fmt::format("rank {}{} has not answered for {} s", other,
                         peer.host.empty() ? "" : " on " + peer.host, patience_));
    }
  }

  void end() {
    send_all();
    if (is_clean_) {
      transport_->close();
      (void)!::write(guard_.get(), "x", 1);
      return closed_.set_value();
    }
    remove_temporaries();
    ::_exit(1);  // the launcher ends the others
  }

  const Transport* transport_ = nullptr;
  const int patience_ = patience();
  const FileDescriptor guard_ = guard_launcher(seconds(patience_));
  const std::string host_ = host_name();
  std::thread pump_;
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> is_closing_{false};
  bool is_clean_ = false;  // set before is_closing_
  std::promise<void> closed_;

  mutable std::mutex mutex_;  // everything below
  std::condition_variable arrived_, has_outgoing_;
  bool is_awaiting_ = false;  // a message
  std::deque<Outgoing> outgoing_;
  std::vector<Peer> peers_;
  bool has_failed_ = false, is_stopped_ = false;
  std::string failure_;
};

std::unique_ptr<Team>& current() {
  static auto* team = new std::unique_ptr<Team>(std::make_unique<SoloTeam>());  // never destroyed
  return *team;
}

/// The module for the launcher that started this program as one of several; empty if none did, or if CBK_TEAM
/// is 0.
std::string module_for_launcher() {
  const auto number = [](const char* name, int otherwise = 0) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::atoi(text);
  };
  if (number("CBK_TEAM", 1) == 0) return {};
  if (number("OMPI_COMM_WORLD_SIZE") > 1) return "libcbk-openmpi.so";
  const bool has_pmix = std::getenv("PMIX_RANK") != nullptr;  // srun --mpi=pmix
  if (has_pmix && number("SLURM_STEP_NUM_TASKS") > 1) return "libcbk-openmpi.so";
  if (number("PMI_SIZE") > 1) return "libcbk-mpich.so";
  return {};
}

}  // namespace

Team& Team::world() {
  return *current();
}

std::vector<std::string> Team::exchange(const std::string& mine) {
  return all_to_all(std::vector<std::string>(static_cast<size_t>(size()), mine));
}

void Team::join(const std::string& version) {
  const std::string name = module_for_launcher();
  if (name.empty()) return;
  // A launcher that is killed takes its ranks with it. Other parents may be threads that end before.
  if (is_below_launcher()) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  void* module = nullptr;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (const fs::path& path :
       {program.parent_path() / name, program.parent_path() / "../libexec/cbk" / name, fs::path(name)}) {
    module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (module != nullptr) break;
  }
  if (module == nullptr) {
    const char* why = ::dlerror();
    fail(Errc::unsupported,
         "started as one of several processes, but the module for MPI is missing ({}); install the package "
         "cbk-mpi, under Slurm pass --mpi=pmix to srun, or set CBK_TEAM=0 if each process works for itself",
         why == nullptr ? name : why);
  }
  auto* open = reinterpret_cast<decltype(&cbk_transport_open)>(::dlsym(module, "cbk_transport_open"));
  if (open == nullptr) fail(Errc::unsupported, "{} is of another version of cbk", name);
  ::setenv("CBK_TEAM", "0", 1);  // programs that this one starts are no ranks
  current() = std::make_unique<ConnectedTeam>(open);
  const std::string first = world().from_first(version);
  if (first != version)
    fail(Errc::usage, "rank {} is cbk {}, and rank 0 is cbk {}: start the same version on all nodes",
         world().rank(), version, first);
}

}  // namespace cbk
