#include "host/formats/tensorflow/state_file.hpp"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <chrono>

#include "host/formats/file_names.hpp"
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

}  // namespace

State read_state(const fs::path& file) {
  const proto::State state = parse_state(file);
  return {state.model_checkpoint_path(),
          {state.all_model_checkpoint_paths().begin(), state.all_model_checkpoint_paths().end()}};
}

std::shared_ptr<const MappedFile> latest_in(const fs::path& folder, const std::vector<fs::path>& allowed) {
  std::error_code ignored;
  const fs::path file = folder / state_file_name;
  if (!fs::is_regular_file(file, ignored)) return nullptr;
  const fs::path latest = read_state(file).latest;
  const NamedFiles files(folder, allowed);
  return within(fmt::format("its state file '{}'", state_file_name), [&] {
    if (latest.is_absolute()) {
      if (auto index = files.find(latest.filename().string() + std::string(bundle_index_suffix),
                                  NamedFiles::Link::followed))
        return index;
    }
    if (auto index =
            files.find(latest.string() + std::string(bundle_index_suffix), NamedFiles::Link::followed))
      return index;
    fail(Errc::format, "the latest checkpoint is {}, but '{}.index' does not exist", quote(latest.string()),
         (folder / latest).string());
  });
}

namespace {

/// The checkpoints in a state file, oldest first, with their times or none. TensorFlow treats the latest as
/// one of them if the list does not contain it.
struct Known {
  std::vector<std::string> paths;
  std::vector<double> times;
};

Known known_by(const proto::State& state) {
  Known known{
      {state.all_model_checkpoint_paths().begin(), state.all_model_checkpoint_paths().end()},
      {state.all_model_checkpoint_timestamps().begin(), state.all_model_checkpoint_timestamps().end()}};
  if (known.times.size() != known.paths.size()) known.times.clear();  // as many as paths, or none
  const std::string& latest = state.model_checkpoint_path();
  if (std::find(known.paths.begin(), known.paths.end(), latest) == known.paths.end()) {
    known.paths.push_back(latest);
    if (!known.times.empty()) known.times.push_back(known.times.back());
  }
  return known;
}

}  // namespace

std::string next_state(const fs::path& prefix) {
  std::error_code ignored;
  const fs::path file = prefix.parent_path() / state_file_name;
  const std::string name = prefix.filename().string();
  proto::State next;
  next.set_model_checkpoint_path(name);
  bool has_times = false;
  if (fs::exists(file, ignored)) {
    const proto::State old = parse_state(file);
    const Known known = known_by(old);
    has_times = !known.times.empty();
    for (size_t i = 0; i < known.paths.size(); ++i) {
      if (known.paths[i] == name || known.paths[i] == fs::absolute(prefix)) continue;
      next.add_all_model_checkpoint_paths(known.paths[i]);
      if (has_times) next.add_all_model_checkpoint_timestamps(known.times[i]);
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
