#include "host/streaming/write_all.hpp"

#include <algorithm>
#include <utility>

#include "host/base/interrupt.hpp"
#include "host/base/stale.hpp"
#include "host/base/team.hpp"
#include "host/streaming/execution.hpp"
#include "host/streaming/expansion.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

SourceFiles sources_of(const std::vector<Writer*>& writers, const StreamingOptions& options) {
  SourceFiles files = options.inputs;
  std::unordered_set<const Expression*> seen;
  for (const Writer* writer : writers)
    for (const Item& item : writer->items()) add_source_files(*item.tensor.expression(), files, seen);
  return files;
}

/// The file of an output's provenance; nullptr: none is wanted.
StagedFile* provenance_file(const StreamingOptions& options, size_t output, Transaction& transaction) {
  if (!options.provenance) return nullptr;
  return &transaction.file(options.provenance->files.at(output), true);
}

void write_provenance(StagedFile* file, const StreamingOptions& options, const SourceFiles& sources,
                      const Execution& execution) {
  if (file == nullptr) return;
  file->write(0,
              as_bytes(provenance_text(*options.provenance, sources, file->target(), execution.digests())));
}

/// What would be written of the output of a provenance, compared with that. Other outputs are passed over, as
/// if they were written.
Written replay(const std::vector<Writer*>& writers, const StreamingOptions& options) {
  Written out;
  out.lost.resize(writers.size());
  for (size_t i = 0; i < writers.size(); ++i) {
    if (fs::absolute(options.targets.at(i)).lexically_normal() != options.job->output.lexically_normal())
      continue;
    out.is_committed = false;
    Execution execution(*writers[i], {}, options, nullptr);
    execution.fill();
    out.lost[i] = execution.complete(execution.take_finished(), {});
    const auto recorded = recorded_digests(options.job->provenance);
    const std::vector<ItemDigest> now = execution.digests();
    if (recorded.size() != now.size())
      out.differences.push_back(
          fmt::format("there were {} tensors, and the replay has {}", recorded.size(), now.size()));
    for (size_t k = 0; k < std::min(recorded.size(), now.size()); ++k) {
      const bool is_same =
          recorded[k].first == now[k].item->key && recorded[k].second == to_hex(now[k].digest);
      if (!is_same) out.differences.push_back(fmt::format("{} has other bytes", quote(now[k].item->key)));
    }
  }
  return out;
}

/// A process that writes everything, and remembers nothing.
Written write_alone(const std::vector<Writer*>& writers, const StreamingOptions& options,
                    Transaction& transaction) {
  Written out;
  const SourceFiles sources = sources_of(writers, options);
  for (size_t i = 0; i < writers.size(); ++i) {
    Execution execution(*writers[i], writers[i]->lay_out(transaction), options, nullptr);
    StagedFile* provenance = provenance_file(options, i, transaction);
    execution.fill();
    out.lost.push_back(execution.complete(execution.take_finished(), {}));
    write_provenance(provenance, options, sources, execution);
  }
  transaction.expect_unchanged(sources);
  transaction.commit(options.sync);
  return out;
}

/// The target and the values of each output.
std::vector<std::string> facts_of(size_t outputs, const StreamingOptions& options) {
  std::vector<std::string> out(outputs);
  for (size_t i = 0; i < std::min(outputs, options.targets.size()); ++i)
    out[i] = fmt::format("{} values {}", quote(options.targets[i].string(), 1 << 16), options.values.at(i));
  return out;
}

/// What one of several processes does: all of them lay out the same files, fill their blocks of them, and the
/// last step is that of one.
class SharedWork {
 public:
  SharedWork(const std::vector<Writer*>& writers, const StreamingOptions& options, Transaction& transaction)
      : writers_(writers),
        options_(options),
        job_(options.job.get()),
        transaction_(transaction),
        sources_(sources_of(writers, options)),
        plan_(plan_text(writers, facts_of(writers.size(), options), sources_, shared_block_size(options),
                        job_)) {}

  Written run() {
    Written out;
    agree();
    if (job_ != nullptr && team_.is_first()) out.job = job_->folder;
    if (stage_ == Stage::done) {
      out.lost.resize(writers_.size());
      return out;
    }
    lay_out();
    out.share = share();
    if (job_ == nullptr || job_->action != JobOptions::Action::plan) fill();
    if (!job_commits()) {
      transaction_.leave();
      team_.to_first("");
      out.is_committed = false;
      return out;
    }
    complete(out);
    for (const auto& source : sources_) source->refuse_changed();
    transaction_.commit(options_.sync);
    if (folder_ && team_.is_first()) folder_->end();
    if (!folder_) remove_pieces();
    return out;
  }

 private:
  /// Of all ranks: one that was killed now could not remove its own.
  void remove_pieces() const {
    std::error_code ignored;
    for (int rank = 0; rank < team_.size(); ++rank) {
      fs::remove(pieces_of(rank), ignored);
      forget_temporary(pieces_of(rank));
    }
  }

  [[nodiscard]] bool has_share() const {
    return job_ == nullptr || job_->action == JobOptions::Action::run ||
           job_->action == JobOptions::Action::work;
  }

  [[nodiscard]] Share share() const {
    if (!team_.is_alone()) return {team_.rank(), team_.size()};
    return job_ != nullptr && job_->action == JobOptions::Action::work ? job_->share : Share();
  }

  /// All ranks have the same plan. Rank 0 says how far it is, and the tag of its temporary files.
  void agree() {
    refuse_others(team_.to_first(plan_.digest), "planned");
    refuse_inner_folder();
    if (team_.is_first() && job_ != nullptr) folder_.emplace(*job_, plan_);
    if (folder_)
      stage_ = folder_->is_done() ? Stage::done : folder_->is_begun() ? Stage::begun : Stage::fresh;
    const std::string said =
        team_.from_first(static_cast<char>(stage_) + (folder_ ? folder_->tag() : new_tag()));
    stage_ = static_cast<Stage>(said.front());
    tag_ = said.substr(1);
  }

  /// Rank 0 makes the files, while the others wait; then they open them.
  void wait_for_first() {
    if (!team_.is_first()) team_.from_first("");
  }
  void let_others_go() {
    if (team_.is_first()) team_.from_first("");
  }

  void lay_out() {
    const bool is_first = team_.is_first() && stage_ != Stage::begun;
    wait_for_first();
    transaction_.share({tag_,
                        {is_first ? Role::Kind::first : Role::Kind::joining, job_ != nullptr},
                        folder_ ? folder_->note() : fs::path()});
    try {
      for (Writer* writer : writers_) {
        slots_.push_back(writer->lay_out(transaction_));
        provenances_.push_back(provenance_file(options_, slots_.size() - 1, transaction_));
      }
      const std::string layout = transaction_.layout_digest();
      if (is_first && folder_) folder_->begin(*job_, plan_, sources_, layout);
      let_others_go();
      refuse_others(team_.to_first(layout), "laid out");
      if (!is_first && folder_) folder_->check_layout(layout);
    } catch (...) {
      if (is_first && folder_ && !folder_->is_begun()) transaction_.discard();
      throw;
    }
    transaction_.begin_filling();
    if (!team_.is_first() && job_ != nullptr) folder_.emplace(job_->folder, tag_);
  }

  /// A folder that is replaced as a whole is no place for its job.
  void refuse_inner_folder() const {
    for (const fs::path& target : options_.targets) {
      if (job_commits()) break;
      const fs::path way = fs::absolute(job_->folder)
                               .lexically_normal()
                               .lexically_relative(fs::absolute(target).lexically_normal());
      if (!way.empty() && *way.begin() != "..")
        fail(Errc::usage, "the job's folder '{}' cannot be in its output '{}'; choose another one",
             job_->folder.string(), target.string());
    }
  }

  /// All ranks have said the same.
  static void refuse_others(const std::vector<std::string>& said, std::string_view what) {
    for (size_t rank = 1; rank < said.size(); ++rank) {
      if (said[rank] != said[0]) {
        throw Error(Errc::changed,
                    {.problem = fmt::format("rank {} has {} something else than rank 0", rank, what),
                     .advice = "all must see the same files, and a script must not depend on the rank"});
      }
    }
  }

  void fill() {
    if (folder_) before_ = folder_->finished();
    if (folder_) piece_files_ = folder_->pieces();
    if (has_share())
      ledger_ = folder_ ? folder_->new_ledger(share()) : std::make_unique<Ledger>(pieces_of(team_.rank()));
    // Whoever is left removes the pieces of all.
    for (int rank = 0; rank < team_.size() && !folder_; ++rank) remember_temporary(pieces_of(rank));
    assignments_.reserve(writers_.size());
    for (size_t i = 0; i < writers_.size(); ++i) {
      assignments_.push_back({share(), static_cast<uint32_t>(i), plan_.blocks_of, ledger_.get(), &before_});
    }
    for (size_t i = 0; i < writers_.size(); ++i) {
      executions_.push_back(
          std::make_unique<Execution>(*writers_[i], std::move(slots_[i]), options_, &assignments_[i]));
      if (!has_share()) continue;
      const auto gentle = folder_ ? std::make_unique<GentleEnd>() : nullptr;
      try {
        executions_.back()->fill();
        executions_.back()->verify();
      } catch (...) {
        note_rest();
        throw;
      }
    }
    if (ledger_ && !job_commits()) ledger_->flush();
  }

  /// Of a job that ends early, what is written so far is kept.
  void note_rest() noexcept {
    try {
      if (ledger_ && folder_) ledger_->flush();
    } catch (const std::exception&) {
      // It is why this failed, or would fail as well: a full disk.
    }
  }

  [[nodiscard]] bool job_commits() const { return job_ == nullptr || job_->commits(); }

  /// The blocks of all processes, on the first rank.
  FinishedBlocks gather() {
    std::vector<std::string> messages =
        team_.to_first(ledger_ ? message_of(ledger_->pieces(), ledger_->blocks()) : message_of({}, {}));
    FinishedBlocks all = before_;
    take_messages(std::move(messages), all, piece_files_);
    return all;
  }

  void complete(Written& out) {
    FinishedBlocks all = gather();
    if (!team_.is_first()) return;
    if (job_ != nullptr && job_->action == JobOptions::Action::finish) refuse_missing(all);
    for (size_t i = 0; i < executions_.size(); ++i) {
      // Large models have a hundred bytes for each of half a million blocks: the last output takes them over.
      FinishedBlocks blocks = i + 1 == executions_.size() ? std::exchange(all, {}) : all;
      out.lost.push_back(executions_[i]->complete(
          std::move(blocks), [&](const FinishedBlock& block) { return piece_files_.at(block.process); }));
      write_provenance(provenances_[i], options_, sources_, *executions_[i]);
    }
  }

  void refuse_missing(const FinishedBlocks& all) const {
    std::set<std::tuple<uint32_t, uint64_t, int64_t>> known;
    for (const FinishedBlock& block : all) known.emplace(block.output, block.item, block.begin);
    const int parts = folder_->usual_parts();
    std::set<int> missing;
    for (size_t i = 0; i < writers_.size(); ++i) {
      const std::vector<size_t> order = reading_order(writers_[i]->items());
      BlockWalk::each(writers_[i]->items(), order, plan_.blocks_of, parts, [&](const Block& block, int part) {
        if (!known.contains({static_cast<uint32_t>(i), block.item, block.begin})) missing.insert(part + 1);
      });
    }
    if (missing.empty()) return;
    std::vector<std::string> names;
    names.reserve(missing.size());
    for (const int part : missing) names.push_back(fmt::format("{}/{}", part, parts));
    throw Error(Errc::missing, {.problem = fmt::format("the job '{}' is not done: part{} {} {} missing",
                                                       job_->folder.string(), names.size() == 1 ? "" : "s",
                                                       listed(names, 8), names.size() == 1 ? "is" : "are"),
                                .file = job_->folder.string(),
                                .advice = fmt::format("`cbk work {} --part {}` writes one",
                                                      job_->folder.string(), names[0])});
  }

  /// The temporary file for the pieces of a rank: beside the output, with a tag of its own.
  [[nodiscard]] fs::path pieces_of(int rank) const {
    const auto number =
        static_cast<uint32_t>(std::stoul(tag_, nullptr, 16)) + static_cast<uint32_t>(rank) + 1;
    return temporary_sibling(options_.targets.empty() ? fs::path("cbk") : fs::absolute(options_.targets[0]),
                             fmt::format("{:08x}", number));
  }

  /// Of a job: a fresh one, one that continues, and one whose outputs have their names.
  enum class Stage : char { fresh = '-', begun = '+', done = '=' };

  const std::vector<Writer*>& writers_;
  const StreamingOptions& options_;
  const JobOptions* job_;
  Transaction& transaction_;
  const SourceFiles sources_;
  const PlanText plan_;
  Team& team_ = Team::world();
  std::optional<JobFolder> folder_;
  std::string tag_;
  Stage stage_ = Stage::fresh;
  std::vector<std::vector<Slot>> slots_;
  std::vector<StagedFile*> provenances_;
  std::unique_ptr<Ledger> ledger_;
  FinishedBlocks before_;
  std::vector<fs::path> piece_files_;
  std::vector<Assignment> assignments_;
  std::vector<std::unique_ptr<Execution>> executions_;
};

}  // namespace

Written write_all(const std::vector<Writer*>& writers, const StreamingOptions& options,
                  Transaction& transaction) {
  for (const Writer* writer : writers) check_expansion(*writer, options.max_expansion);
  if (options.is_replay) return replay(writers, options);
  if (options.job == nullptr && Team::world().is_alone()) return write_alone(writers, options, transaction);
  return SharedWork(writers, options, transaction).run();
}

}  // namespace cbk
