#include "host/streaming/job.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "host/base/entries.hpp"
#include "host/base/file_lock.hpp"
#include "host/base/sha256.hpp"
#include "host/base/stale.hpp"
#include "host/streaming/provenance.hpp"
#include "host/tensor/description.hpp"
#include "host/value/json.hpp"

namespace cbk {
namespace {

constexpr std::string_view plan_name = "plan.json", text_name = "plan.txt", lock_name = "lock",
                           note_name = "commit";
constexpr std::string_view journal_ending = ".done", pieces_ending = ".pieces";

/// The folder's path without a slash at its end.
fs::path plain(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

/// Whether a job has a file with this name, maybe one that was not finished.
bool is_of_job(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string ending = path.extension().string();
  if (name.starts_with("part-") && (ending == journal_ending || ending == pieces_ending)) return true;
  const auto names = {plan_name, text_name, lock_name, note_name};
  return std::ranges::any_of(names, [&](std::string_view own) {
    return name == own || is_temporary_of(path, path.parent_path() / own);
  });
}

bool is_tag(std::string_view text) {
  return text.size() == 8 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// A folder of the user's own is no place for a job, which would be removed with its files. One of a job that
/// was killed before its plan was there has a lock with a tag.
void refuse_foreign(const fs::path& folder) {
  std::error_code ignored;
  const fs::path lock = folder / lock_name;
  const bool is_locked = fs::is_regular_file(lock, ignored) && is_tag(read_file(lock, 4096));
  const bool is_known = is_locked || fs::exists(folder / note_name, ignored);  // that is checked as well
  for (const fs::directory_entry& entry : entries_of(folder)) {
    const bool is_text = entry.path().filename() == text_name;
    if (is_known && is_of_job(entry.path()) && (!is_text || read_file(entry.path()).starts_with("cbk ")))
      continue;
    throw Error(Errc::exists, {.problem = fmt::format("'{}' is not empty, and no job", folder.string()),
                               .file = folder.string(),
                               .advice = "choose a new folder"});
  }
}

/// The first line that two plans do not share: "it was …, and is …".
std::string difference(std::string_view before, std::string_view now) {
  const auto next = [](std::string_view& text) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
  };
  while (!before.empty() || !now.empty()) {
    const std::string_view was = next(before), is = next(now);
    if (was != is)
      return fmt::format("; it was {}, and is {}", was.empty() ? "shorter" : quote(was, 200),
                         is.empty() ? "shorter" : quote(is, 200));
  }
  return "";
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

JobFolder::JobFolder(const JobOptions& options, const PlanText& plan) : folder_(plain(options.folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail_errno("create", folder_.string(), error.value());
  const fs::path path = folder_ / plan_name;
  const bool is_job = fs::exists(path), is_noted = fs::exists(note());
  if (!is_job && !is_noted &&
      (options.action == JobOptions::Action::work || options.action == JobOptions::Action::finish))
    fail(Errc::usage, "'{}' is no job: make one with --plan", folder_.string());
  if (!is_job) refuse_foreign(folder_);
  lock(options.action != JobOptions::Action::work);
  read_tag();
  if (!is_job && !is_noted) return;
  if (!is_job) {  // it was being removed
    complete(options, true);
    return;
  }
  const Value known = parse_json(read_file(path));
  const Value* version = known.find("cbk");
  const Value* digest = known.find("digest");
  if (version == nullptr || digest == nullptr || !digest->is(Value::Kind::string))
    fail(Errc::format, "'{}' is not the plan of a job", path.string());
  const bool is_same = digest->as_string() == plan.digest;
  if (is_noted) {
    complete(options, is_same);
    return;
  }
  const std::string began = version->is(Value::Kind::string) ? version->as_string() : to_json(*version);
  if (began != options.version) {
    throw Error(Errc::changed, {.problem = fmt::format("the job '{}' was begun by cbk {}, and this is cbk {}",
                                                       folder_.string(), began, options.version),
                                .file = folder_.string(),
                                .advice = "use the same version, or " + advice()});
  }
  if (!is_same) {
    std::error_code ignored;
    const fs::path text = folder_ / text_name;
    refuse_other_plan(fs::exists(text, ignored) ? difference(read_file(text), plan.text) : "");
  }
  if (const Value* layout = known.find("layout"); layout != nullptr && layout->is(Value::Kind::string))
    layout_ = layout->as_string();
  is_begun_ = true;
}

/// A program was killed while it committed, or after that.
void JobFolder::complete(const JobOptions& options, bool is_same) {
  complete_commit(note());
  if (options.action == JobOptions::Action::work)
    fail(Errc::usage, "the job '{}' is done: its output is complete", folder_.string());
  is_done_ = is_same || options.action == JobOptions::Action::finish;
  is_begun_ = is_done_;
  if (is_done_) return;
  // Another commit of the same name: it begins anew.
  for (const fs::directory_entry& entry : entries_of(folder_))
    if (is_of_job(entry.path()) && entry.path().filename() != lock_name) fs::remove(entry.path());
}

JobFolder::JobFolder(const fs::path& folder, std::string tag)
    : folder_(plain(folder)), tag_(std::move(tag)), is_begun_(true) {
  lock_ = open_file("open", folder_ / lock_name, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
}

std::string JobFolder::advice() const {
  return fmt::format("remove the folder and the files that end with '{}.job', and begin again", tag_);
}

void JobFolder::refuse_other_plan(const std::string& how) const {
  throw Error(Errc::changed,
              {.problem = fmt::format("the job '{}' has another plan: the command, an option, a source, a "
                                      "config or a script has changed since it was begun{}",
                                      folder_.string(), how),
               .file = folder_.string(),
               .advice = "undo the change, or " + advice()});
}

void JobFolder::check_layout(const std::string& layout) const {
  if (layout != layout_) refuse_other_plan("");
}

fs::path JobFolder::note() const {
  return fs::absolute(folder_) / note_name;
}

JobFolder::~JobFolder() {
  if (!is_begun_) remove(folder_);
}

void JobFolder::lock(bool is_alone) {
  lock_ = open_file("open", folder_ / lock_name, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
  if (lock_file(lock_, is_alone ? LockFor::one : LockFor::several) != FileLock::of_another) return;
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

/// The lock has it before anything is laid out, so that what a killed program laid out is found.
void JobFolder::read_tag() {
  const fs::path path = folder_ / lock_name;
  tag_ = read_file(path);
  if (is_tag(tag_)) return;
  tag_ = new_tag();
  write_at(lock_, 0, as_bytes(tag_), path);
}

void JobFolder::end() noexcept {
  std::error_code ignored;
  for (fs::directory_iterator at(folder_, ignored), end; at != end; at.increment(ignored))
    if (at->path().filename().string().starts_with("part-") && is_of_job(at->path()))
      pieces_.push_back(at->path());
  for (const fs::path& path : pieces_) fs::remove(path, ignored);
}

bool JobFolder::complete_removed(const fs::path& folder) {
  const fs::path note = folder / note_name;
  if (fs::exists(folder / plan_name) || !fs::exists(note)) return false;
  complete_commit(note);
  remove(folder);
  return true;
}

void JobFolder::remove(const fs::path& folder) noexcept {
  std::error_code ignored;
  std::vector<fs::path> ours;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    if (is_of_job(at->path())) ours.push_back(at->path());
  // Whoever finds what is left knows that it is done, as long as anything is.
  std::ranges::sort(ours, {}, [](const fs::path& path) { return path.filename() == note_name; });
  for (const fs::path& path : ours) fs::remove(path, ignored);
  fs::remove(folder, ignored);  // unless there is something of the user's in it
}

}  // namespace cbk
