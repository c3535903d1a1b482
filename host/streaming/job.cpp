#include "host/streaming/job.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "host/base/entries.hpp"
#include "host/base/sha256.hpp"
#include "host/base/stale.hpp"
#include "host/streaming/provenance.hpp"
#include "host/tensor/description.hpp"
#include "host/value/json.hpp"

namespace cbk {
namespace {

constexpr std::string_view plan_name = "plan.json", text_name = "plan.txt", lock_name = "lock";
constexpr std::string_view journal_ending = ".done", pieces_ending = ".pieces";
constexpr size_t tag_digits = 8;

/// The folder's path without a slash at its end.
fs::path plain(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

/// A folder of the user's own is no place for a job, which would be removed with its files.
void refuse_foreign(const fs::path& folder) {
  for (const fs::directory_entry& entry : entries_of(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_left_over =
        name == lock_name || (name == text_name && read_file(entry.path()).starts_with("cbk "));
    if (is_left_over) continue;
    throw Error(Errc::exists, {.problem = fmt::format("'{}' is not empty, and no job", folder.string()),
                               .file = folder.string(),
                               .advice = "choose a new folder"});
  }
}

std::string line_of(const Item& item, size_t expression) {
  const Tensor& tensor = item.tensor;
  return fmt::format("{} {} [{}] cost {} expression {}{}\n", quote(item.key, 1 << 20),
                     name_of(tensor.dtype()), fmt::join(tensor.shape(), ", "), cost_of(item), expression,
                     item.pieces ? fmt::format(" in pieces of {}", item.pieces->elements) : "");
}

}  // namespace

PlanText plan_text(const std::vector<Writer*>& writers, const std::vector<std::string>& facts,
                   const SourceFiles& sources, uint64_t block_bytes, const JobOptions* job) {
  PlanText out;
  std::string& text = out.text;
  out.blocks_of = block_bytes;
  if (job != nullptr) text += fmt::format("cbk {}\n{}\n", job->version, fmt::join(job->command, "\n"));
  text += fmt::format("blocks of {} bytes\n", block_bytes);
  std::set<std::string> lines;
  for (const auto& source : sources)
    lines.insert(fmt::format("source {} {} bytes {} {}\n", quote(source->path().string(), 1 << 16),
                             source->size(), source->modified(), source_ends(*source)));
  for (const std::string& line : lines) text += line;
  Descriptions expressions;
  std::string described;
  for (size_t i = 0; i < writers.size(); ++i) {
    const Writer* writer = writers[i];
    text += fmt::format("output {} of {} items\n", facts.at(i), writer->items().size());
    for (const Item& item : writer->items()) {
      text += line_of(item, expressions.add(*item.tensor.expression(), described));
      out.bytes += item.tensor.nbytes();
    }
    out.items += writer->items().size();
  }
  text += "expressions\n" + described;
  out.digest = sha256(as_bytes(text));
  return out;
}

JobFolder::JobFolder(const JobOptions& options, const PlanText& plan)
    : folder_(plain(options.folder)), tag_(plan.digest.substr(0, tag_digits)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail_errno("create", folder_.string(), error.value());
  const fs::path path = folder_ / plan_name;
  const bool is_job = fs::exists(path);
  if (!is_job && (options.action == JobOptions::Action::work || options.action == JobOptions::Action::finish))
    fail(Errc::usage, "'{}' is no job: make one with --plan", folder_.string());
  if (!is_job) refuse_foreign(folder_);
  lock(options.action != JobOptions::Action::work);
  if (!is_job) return;
  const Value known = parse_json(read_file(path));
  const Value* version = known.find("cbk");
  const Value* digest = known.find("digest");
  if (version == nullptr || digest == nullptr || !digest->is(Value::Kind::string))
    fail(Errc::format, "'{}' is not the plan of a job", path.string());
  const std::string began = version->is(Value::Kind::string) ? version->as_string() : to_json(*version);
  if (began != options.version) {
    throw Error(Errc::changed, {.problem = fmt::format("the job '{}' was begun by cbk {}, and this is cbk {}",
                                                       folder_.string(), began, options.version),
                                .file = folder_.string(),
                                .advice = "use the same version, or remove the folder and begin again"});
  }
  if (digest->as_string() != plan.digest) refuse_other_plan();
  if (const Value* layout = known.find("layout"); layout != nullptr && layout->is(Value::Kind::string))
    layout_ = layout->as_string();
  is_begun_ = true;
}

JobFolder::JobFolder(const fs::path& folder, std::string tag)
    : folder_(plain(folder)), tag_(std::move(tag)), is_begun_(true) {
  lock_ = open_file("open", folder_ / lock_name, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
}

void JobFolder::refuse_other_plan() const {
  throw Error(Errc::changed,
              {.problem = fmt::format("the job '{}' has another plan: the command, an option, a source, a "
                                      "config or a script has changed since it was begun",
                                      folder_.string()),
               .file = folder_.string(),
               .advice = "undo the change, or remove the folder and begin again"});
}

void JobFolder::check_layout(const std::string& layout) const {
  if (layout != layout_) refuse_other_plan();
}

JobFolder::~JobFolder() {
  if (!is_begun_) remove();
}

void JobFolder::lock(bool is_alone) {
  lock_ = open_file("open", folder_ / lock_name, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
  if (::flock(lock_.get(), (is_alone ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw Error(Errc::exists, {.problem = fmt::format("the job '{}' is being worked on", folder_.string()),
                             .file = folder_.string(),
                             .advice = "wait until the other processes have ended"});
}

void JobFolder::begin(const JobOptions& options, const PlanText& plan, const SourceFiles& sources,
                      const std::string& layout) {
  const Value json = origin(options.version, options.command, sources);
  Dict& dict = json.as_dict();
  dict.set("block_bytes", static_cast<int64_t>(plan.blocks_of));
  dict.set("bytes", static_cast<int64_t>(plan.bytes));
  dict.set("items", static_cast<int64_t>(plan.items));
  dict.set("digest", plan.digest);
  dict.set("layout", layout);
  const auto write = [&](std::string_view name, std::string_view text) {
    Transaction transaction;
    transaction.file(folder_ / name, true).write(0, as_bytes(text));
    transaction.commit_here(true);
  };
  write(text_name, plan.text);
  JsonWriteOptions indented;
  indented.indent = 2;
  write(plan_name, to_json(json, indented) + "\n");
  is_begun_ = true;
}

std::unique_ptr<Ledger> JobFolder::new_ledger(Share share) const {
  const fs::path stem = folder_ / fmt::format("part-{}-of-{}.{}", share.part + 1, share.parts, new_tag());
  return std::make_unique<Ledger>(stem.string() + std::string(pieces_ending),
                                  stem.string() + std::string(journal_ending));
}

std::vector<fs::path> journals_in(const fs::path& folder) {
  std::vector<fs::path> journals;
  for (const fs::directory_entry& entry : entries_of(folder))
    if (entry.path().extension() == journal_ending) journals.push_back(entry.path());
  std::ranges::sort(journals);
  return journals;
}

FinishedBlocks JobFolder::finished() {
  const std::vector<fs::path> journals = journals_in(folder_);
  FinishedBlocks out;
  std::map<int, int> cuts;
  pieces_.clear();
  for (const fs::path& journal : journals) {
    const std::string name = journal.filename().string();
    if (const size_t of = name.find("-of-"); of != std::string::npos)
      ++cuts[std::atoi(name.c_str() + of + 4)];
    for (FinishedBlock& block : read_ledger(journal)) {
      block.process = static_cast<uint32_t>(pieces_.size());
      out.push_back(block);
    }
    pieces_.push_back(fs::path(journal).replace_extension(pieces_ending));
  }
  int most = 0;
  for (const auto& [parts, count] : cuts)
    if (count > most && parts > 0) std::tie(usual_parts_, most) = std::pair(parts, count);
  return out;
}

void JobFolder::remove() noexcept {
  std::error_code ignored;
  for (const fs::path& path : pieces_) fs::remove(path, ignored);
  std::vector<fs::path> ours;
  for (fs::directory_iterator at(folder_, ignored), end; at != end; at.increment(ignored)) {
    const fs::path& path = at->path();
    const std::string name = path.filename().string();
    const bool is_part = name.starts_with("part-") &&
                         (path.extension() == journal_ending || path.extension() == pieces_ending);
    if (is_part || name == plan_name || name == text_name || name == lock_name) ours.push_back(path);
  }
  for (const fs::path& path : ours) fs::remove(path, ignored);
  fs::remove(folder_, ignored);  // unless there is something of the user's in it
}

}  // namespace cbk
