#include "host/formats/tensorflow/state_file.hpp"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <chrono>

#include "host/formats/tensorflow/proto.hpp"

namespace cbk::tensorflow {
namespace {

constexpr uint64_t largest_state = 4ULL << 20;

/// Keeps the parser from printing.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text.empty()) text = fmt::format("line {}, column {}: {}", line + 1, column + 1, message);
  }
  std::string text;
};

proto::State parse_state(const fs::path& file) {
  const std::string text = read_file(file, largest_state);
  return within(fmt::format("the state file '{}'", file.string()), [&] {
    FirstError error;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&error);
    parser.AllowUnknownField(true);  // of newer releases
    proto::State state;
    if (!parser.ParseFromString(text, &state))
      fail(Errc::format, "it is not one of TensorFlow: {}", error.text);
    if (state.model_checkpoint_path().empty()) fail(Errc::format, "it names no checkpoint");
    return state;
  });
}

bool has_index(const fs::path& prefix) {
  std::error_code ignored;
  return fs::is_regular_file(prefix.string() + ".index", ignored);
}

}  // namespace

State read_state(const fs::path& file) {
  const proto::State state = parse_state(file);
  return {state.model_checkpoint_path(),
          {state.all_model_checkpoint_paths().begin(), state.all_model_checkpoint_paths().end()}};
}

std::optional<fs::path> latest_in(const fs::path& folder) {
  std::error_code ignored;
  const fs::path file = folder / state_file_name;
  if (!fs::is_regular_file(file, ignored)) return std::nullopt;
  const fs::path latest = read_state(file).latest;
  const fs::path prefix = folder / latest;  // itself, if absolute
  if (has_index(prefix)) return prefix;
  const fs::path moved = folder / latest.filename();
  if (latest.is_absolute() && has_index(moved)) return moved;
  fail(Errc::format, "its state file '{}' says that the latest checkpoint is {}, but there is no '{}.index'",
       state_file_name, quote(latest.string()), prefix.string());
}

std::string next_state(const fs::path& prefix) {
  std::error_code ignored;
  const fs::path file = prefix.parent_path() / state_file_name;
  const std::string name = prefix.filename().string();
  proto::State next;
  next.set_model_checkpoint_path(name);
  bool has_times = false;
  if (fs::exists(file, ignored)) {
    const proto::State old = parse_state(file);
    const int count = old.all_model_checkpoint_paths_size();
    // TensorFlow takes as many times as paths, or none
    has_times = count > 0 && old.all_model_checkpoint_timestamps_size() == count;
    for (int i = 0; i < count; ++i) {
      if (old.all_model_checkpoint_paths(i) == name) continue;
      next.add_all_model_checkpoint_paths(old.all_model_checkpoint_paths(i));
      if (has_times) next.add_all_model_checkpoint_timestamps(old.all_model_checkpoint_timestamps(i));
    }
    next.set_last_preserved_timestamp(old.last_preserved_timestamp());
  }
  next.add_all_model_checkpoint_paths(name);
  if (has_times) {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    next.add_all_model_checkpoint_timestamps(now.count());
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(next, &text);
  return text;
}

}  // namespace cbk::tensorflow
