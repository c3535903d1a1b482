#include "host/checkpoint/make_writer.hpp"

#include "host/base/inside.hpp"
#include "host/base/replaced.hpp"
#include "host/checkpoint/formats.hpp"
#include "host/checkpoint/sharded.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "host/value/unreadable.hpp"

namespace cbk {
namespace {

/// The requested format, or the one of the name's suffix.
const Format& format_of(const fs::path& target, const WriteOptions& options) {
  if (!options.format.empty()) {
    const Format* asked = format_of_name(options.format);
    if (asked != nullptr && asked->is_written()) return *asked;
    fail(Errc::usage, "{} is not a format that can be written; known are {}", quote(options.format),
         list_of_formats());
  }
  const Format* said = format_of_suffix(target);
  if (said != nullptr && said->is_written()) return *said;
  if (options.is_folder()) return *format_of_name(options.shard_stem == "model" ? "safetensors" : "torch");
  const std::string why =
      said == nullptr ? fmt::format("cannot tell the format from the name '{}'", target.string())
                      : fmt::format("cannot write '{}': {} can only be read", target.string(), said->title);
  fail(Errc::usage, "{}; end the name in {}, or name the format (--format, in Lua format = …)", why,
       list_of_suffixes());
}

void check_target(const fs::path& target, bool overwrite) {
  std::error_code ignored;
  if (target.empty()) fail(Errc::usage, "the target has no name");
  refuse_existing(target, overwrite);
  fs::path folder = folder_of(target);  // missing ones are made later
  while (!folder.empty() && !fs::exists(folder, ignored)) folder = folder.parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored))
    fail_errno("write into", folder.string(), ENOTDIR);
}

using Companions = std::vector<std::pair<std::string, std::string>>;

/// A writer with further warnings, and with small files beside its target.
class AccompaniedWriter : public Writer {
 public:
  AccompaniedWriter(std::unique_ptr<Writer> writer, std::vector<std::string> warnings, const fs::path& folder,
                    const Companions& companions, const WriteOptions& options)
      : writer_(std::move(writer)), warnings_(std::move(warnings)), overwrite_(options.overwrite) {
    warnings_.insert(warnings_.end(), writer_->warnings().begin(), writer_->warnings().end());
    for (const auto& [name, content] : companions) {
      const bool is_elsewhere = fs::path(name).is_absolute();  // as the caller says
      companions_.emplace_back(is_elsewhere ? fs::path(name) : inside(folder, name), content);
      check_target(companions_.back().first, options.overwrite || options.may_exist);
    }
  }

  [[nodiscard]] const std::vector<Item>& items() const override { return writer_->items(); }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  [[nodiscard]] uint64_t overhead() const override {
    uint64_t total = writer_->overhead();
    for (const auto& companion : companions_) total += companion.second.size();
    return total;
  }

  std::vector<Slot> lay_out(Transaction& transaction) override {
    std::vector<Slot> slots = writer_->lay_out(transaction);
    // Early: readers that find the new checkpoint find these, too.
    for (const auto& [path, content] : companions_)
      transaction.early_file(path, overwrite_).write(0, as_bytes(content));
    return slots;
  }

  void finish(const std::vector<uint32_t>& crcs) override { writer_->finish(crcs); }

 private:
  std::unique_ptr<Writer> writer_;
  std::vector<std::string> warnings_;
  bool overwrite_;
  std::vector<std::pair<fs::path, std::string>> companions_;
};

/// Texts of TensorFlow, which only bundles and flat H5 can hold.
std::vector<std::string> warnings_of(const std::vector<std::string>& texts) {
  std::vector<std::string> warnings;
  warnings.reserve(texts.size());
  for (const std::string& name : texts) {
    warnings.push_back(
        fmt::format("{} is left out: the output has no form for tensors of texts", quote(name, 1000)));
  }
  return warnings;
}

}  // namespace

bool makes_tree(const fs::path& target, const WriteOptions& options) {
  const Format* said = options.format.empty() ? format_of_suffix(target) : format_of_name(options.format);
  return said != nullptr && said->name == "h5" && options.h5_version != "flat" && !options.is_folder();
}

std::unique_ptr<Writer> make_writer(const Value& root, const fs::path& named, const WriteOptions& options) {
  const fs::path target = named.has_filename() ? named : named.parent_path();  // "out/" is "out"
  const Format& format = format_of(target, options);
  const bool is_h5 = format.name == "h5";
  const bool is_bundle = format.write_files != nullptr;
  const bool is_folder = options.is_folder() && !is_bundle;
  const bool is_flat = is_h5 && options.h5_version == "flat";
  if (options.keep_texts && !is_flat && !is_bundle)
    fail(Errc::usage, "tensors of texts can be kept in flat H5 and TensorFlow checkpoints only");
  if (!is_h5 && !options.h5_version.empty())
    fail(Errc::usage, "'{}' would be of the format {}: leave out the H5 version", target.string(),
         format.name);
  if (!is_h5 && options.compression != Compression::none) {
    fail(Errc::usage, "'{}' would be of the format {}: only H5 has compressed chunks", target.string(),
         format.name);
  }
  if (is_bundle) {
    check_target(named, true);  // its writer knows the files
  } else {
    check_target(target, options.overwrite || options.may_exist);
  }
  refuse_unreadable(root);
  std::vector<std::string> texts;
  const Value tree = is_bundle ? root : tensorflow::for_others(root, options.keep_texts, texts);
  auto writer = is_bundle   ? format.write_files(tree, named, options)
                : is_folder ? make_sharded_writer(tree, target, format, options)
                            : format.write_file(tree, target, options);
  Companions companions = options.companions;
  if (is_folder) std::erase_if(companions, [](const auto& each) { return is_inside_folder(each.first); });
  if (companions.empty() && texts.empty()) return writer;
  return std::make_unique<AccompaniedWriter>(std::move(writer), warnings_of(texts), target.parent_path(),
                                             companions, options);
}

}  // namespace cbk
