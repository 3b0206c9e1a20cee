#include "native/servable/batching_servable.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <utility>

#include "native/base/byte_budget.h"
#include "native/base/clock.h"
#include "native/base/share_scope.h"
#include "native/tensor/tensor_access.h"
#include "native/tensor/tensor_compare.h"
#include "native/tensor/tensor_rows.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using tensor::TensorList;

// Returns true if each tensor has so many rows.
bool HaveRows(const std::vector<TensorList>& results, int64_t rows) {
  return std::all_of(results.begin(), results.end(), [rows](const TensorList& result) {
    return tensor::CountRows(result) == rows;
  });
}

// Returns true if rows of one are rows of the other.
bool HaveEqualLayouts(const std::vector<TensorList>& a, const std::vector<TensorList>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const TensorList& one, const TensorList& other) {
                      return tensor::LayoutOf(one) == tensor::LayoutOf(other);
                    });
}

// Returns true if each input has a shape that the signature names.
bool HasNamedShapes(const tensor::Signature& signature, const TensorList& inputs) {
  for (size_t i = 0; i < std::min(inputs.size(), signature.inputs.size()); ++i) {
    if (!tensor::ShapeFits(tensor::ViewTensor(inputs, i).dims, signature.inputs[i])) return false;
  }
  return true;
}

// Returns the context of a run that shows what a model does, or that several requests share: it
// ends before it changes a variable.
tensor::RunContext WithoutWriting(const tensor::RunContext& run) {
  tensor::RunContext context = run;
  context.may_write = false;
  return context;
}

// Joins the results of the pieces of a request of `rows` rows. Each piece but the last one has
// `piece_rows` rows, and all have equal layouts.
Status JoinPieces(const std::vector<std::vector<TensorList>>& pieces, int64_t piece_rows,
                  int64_t rows, std::vector<TensorList>* results) {
  results->resize(pieces.front().size());
  for (size_t i = 0; i < results->size(); ++i) {
    std::vector<tensor::RowRange> parts;
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      const int64_t first = static_cast<int64_t>(piece) * piece_rows;
      parts.push_back({&pieces[piece][i], 0, std::min(piece_rows, rows - first)});
    }
    MILLPOND_RETURN_IF_ERROR(
        tensor::JoinRows(parts, tensor::LayoutOf(pieces.front()[i]), rows, &(*results)[i]));
  }
  return {};
}

// The names in a request, and what they are wrapped in.
constexpr size_t kEnvelopeBytes = 1024;
// The longest message of a request that has its turn between two pieces of a large one: its
// decoding and its run should take a moment.
constexpr size_t kSmallBytes = 64 * 1024;

// The most requests of a batch that are compared with single runs, if it is checked.
constexpr size_t kComparedMax = 4;
// The most pieces of a request that is compared with its run as a whole.
constexpr int64_t kWholePiecesMax = 8;
// Every 32nd batch may have two requests whatever the costs seem to be, so that a wrong measurement
// of a larger run is corrected.
constexpr uint64_t kTrials = 32;

// The evidence that a batch gives about a model if its answers are those of single runs. Each is
// counted by itself, or clients that repeat one request would end the checks.
enum class Evidence : size_t {
  kEqualRows,      // of equal requests, or of one request and padding: hardly anything
  kRows,           // its rows do not mix
  kPaddedInputs,   // padded inputs do not matter either
  kEvidenceCount,  // the number of the above
};
constexpr auto kEvidenceCount = static_cast<size_t>(Evidence::kEvidenceCount);

thread_local bool holds_slot = false;

// Holds one of the slots, if there are any, for a run. A run within a run shares its slot.
class SlotHold {
 public:
  // Waits for a slot until `until_ns`.
  SlotHold(BatchSlots* slots, int64_t until_ns) : slots_(holds_slot ? nullptr : slots) {
    if (slots_ == nullptr) return;
    has_slot_ = slots_->Take(until_ns);
    holds_slot = has_slot_;
  }
  ~SlotHold() {
    if (slots_ == nullptr || !has_slot_) return;
    holds_slot = false;
    slots_->Give();
  }
  // True if the run may begin.
  bool may_run() const { return has_slot_; }
  SlotHold(const SlotHold&) = delete;
  SlotHold& operator=(const SlotHold&) = delete;

 private:
  BatchSlots* const slots_;
  bool has_slot_ = true;
};

Status NoSlot() {
  return {Code::kDeadlineExceeded,
          "the request's deadline passed while as many batches ran as may (num_batch_threads)"};
}

}  // namespace

bool IsOfTheModel(Code code) {
  switch (code) {
    case Code::kCancelled:
    case Code::kDeadlineExceeded:
    case Code::kResourceExhausted:
    case Code::kUnavailable:
      return false;
    default:
      return true;
  }
}

base::StatusOr<std::vector<TensorList>> RunBesideCopies(
    const tensor::RowRange& own, int64_t first, int64_t rows, const tensor::RowLayout& layout,
    const std::function<Status(const TensorList&, std::vector<TensorList>*)>& run) {
  const tensor::RowRange copy{own.tensors, own.first, 1};
  std::vector<tensor::RowRange> parts(static_cast<size_t>(first), copy);
  parts.push_back(own);
  parts.resize(parts.size() + static_cast<size_t>(rows - first - own.count), copy);
  TensorList inputs;
  std::vector<TensorList> results;
  MILLPOND_RETURN_IF_ERROR(tensor::JoinRows(parts, layout, rows, &inputs));
  MILLPOND_RETURN_IF_ERROR(run(inputs, &results));
  if (!HaveRows(results, rows)) return base::Internal("an output does not have the run's rows");
  for (TensorList& result : results) result = tensor::ShareRows(result, first, own.count);
  return results;
}

BatchSettings ForCompiledModel(BatchSettings settings) {
  settings.is_compiled = true;
  if (!settings.allowed_rows.empty()) return settings;
  for (int64_t rows = 1; rows < settings.rows_max; rows *= 2) settings.allowed_rows.push_back(rows);
  settings.allowed_rows.push_back(settings.rows_max);
  return settings;
}

bool BatchSlots::Take(int64_t until_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_free = [this] { return free_count_ > 0; };
  if (until_ns == tensor::RunContext::kNoDeadline) {
    freed_.wait(lock, is_free);
  } else {
    // The clock of base::MonotonicNs.
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(until_ns)};
    if (!freed_.wait_until(lock, until, is_free)) return false;
  }
  free_count_ -= 1;
  return true;
}

void BatchSlots::Give() {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_count_ += 1;
  freed_.notify_one();
}

// One signature, or the runs of several signatures at once.
struct BatchingServable::State {
  State(std::string its_name, BatchKey its_key, const BatchSettings& settings)
      : name(std::move(its_name)),
        key(its_key),
        waiting_limit(its_key, settings.waiting_requests_max),
        cost(settings.rows_max, settings.run_ns_max),
        pads_inputs(settings.pads_inputs) {}
  ~State() {
    if (is_on) BatchingCount().fetch_sub(1);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void Switch(bool on, std::string reason) {
    const std::lock_guard<std::mutex> lock(mutex);
    refusal = std::move(reason);
    is_refused = !on;
    if (is_on.exchange(on) != on) BatchingCount().fetch_add(on ? 1 : -1);
  }
  void CheckBatches(const BatchChecks& checks) {
    for (size_t i = 0; i < kEvidenceCount; ++i) {
      const bool is_padded = i == static_cast<size_t>(Evidence::kPaddedInputs);
      const int64_t count = is_padded ? checks.first_padded_count : checks.first_count;
      unchecked_counts[i] = std::max(unchecked_counts[i].load(), static_cast<int32_t>(count));
    }
    if (checks.goes_on) checks_go_on = true;
  }
  // Returns true for one of kCheckedEvery batches, or requests in pieces, if checks go on.
  bool TakeTurn() {
    return checks_go_on.load(std::memory_order_relaxed) &&
           turn_count.fetch_add(1, std::memory_order_relaxed) % kCheckedEvery == 0;
  }
  bool ChecksBatchesOf(Evidence evidence) const {
    return unchecked_counts[static_cast<size_t>(evidence)].load(std::memory_order_relaxed) > 0;
  }
  // Returns true if a batch of `evidence` is to be checked, and counts it.
  bool TakeCheck(Evidence evidence) {
    return ChecksBatchesOf(evidence) &&
           unchecked_counts[static_cast<size_t>(evidence)].fetch_sub(1) > 0;
  }
  void RefusePadding(const std::string& reason) {
    const std::lock_guard<std::mutex> lock(mutex);
    pads_inputs = false;
    padding_refusal = "its inputs are not padded: " + reason;
  }

  const std::string name;
  const BatchKey key;
  const WaitingLimit waiting_limit;
  BatchCost cost;
  BatchStatistics statistics;
  servable::HotBatches hot_batches;
  std::atomic<uint64_t> begun_count{0};  // batches
  // The batches that are to be checked, by their evidence.
  std::array<std::atomic<int32_t>, kEvidenceCount> unchecked_counts{};
  std::atomic<bool> checks_go_on{false};
  std::atomic<uint64_t> turn_count{1};  // of batches that may be checked
  tensor::Magnitudes magnitudes;
  std::atomic<bool> is_on{false};
  std::atomic<bool> is_refused{false};
  std::atomic<bool> pads_inputs;
  std::mutex mutex;
  std::string refusal = "its rows have not been compared yet";  // guarded by mutex
  std::string padding_refusal;                                  // guarded by mutex
  tensor::RowVerdict verdict;                                   // guarded by mutex
};

// One request's run. Lives on the stack of its run.
struct BatchingServable::Member {
  void Enter(metrics::Phase phase, int64_t now_ns) const {
    if (run.watch != nullptr) run.watch->Enter(phase, now_ns);
  }

  const tensor::RunContext& run;
  const TensorList& inputs;
  std::vector<TensorList> results;  // one for each signature
  int64_t rows = 0;
  int64_t joined_ns = 0;
  Status status;
};

// The requests of a thread that share one run, and what they run. Lives on the stack of the first
// one's run.
class OpenBatch {
 public:
  using Member = BatchingServable::Member;
  using State = BatchingServable::State;

  // Borrows all. `outputs` is null for a run of several signatures.
  OpenBatch(const BatchingServable& servable, State* state,
            const std::vector<const tensor::Signature*>& signatures,
            const tensor::OutputSet* outputs)
      : servable_(servable), state_(*state), signatures_(signatures), outputs_(outputs) {}

  State& state() const { return state_; }
  bool has_run() const { return has_run_; }
  // Adds the first run.
  void Begin(Member* member, int64_t now_ns) {
    member->joined_ns = now_ns;
    members_.push_back(member);
    rows_ = member->rows;
    is_trial_ = state_.begun_count.fetch_add(1, std::memory_order_relaxed) % kTrials == 0;
  }
  // Adds a run if it does the same and its rows fit. `own` is the batch that it would begin.
  bool TryAdd(const OpenBatch& own, Member* member, int64_t now_ns) {
    if (has_run_ || !own.DoesTheSame(*this)) return false;
    if (member->rows > rows_left(/*is_thread_free=*/false)) return false;
    if (layout_.columns.empty()) layout_ = tensor::LayoutOf(members_.front()->inputs);
    const tensor::RowLayout layout = tensor::LayoutOf(member->inputs);
    if (!(layout == layout_)) {
      if (!state_.pads_inputs || !layout_.IsPaddable(layout)) return false;
      layout_.Widen(layout);
      is_widened_ = true;
    }
    member->joined_ns = now_ns;
    members_.push_back(member);
    rows_ += member->rows;
    return true;
  }
  // Counts a request that is to be fetched. Returns false if that would be one too many: requests
  // that fail before their run take no place, and a flood of them would hold the batch up.
  bool TakeFetch() { return fetched_count_++ < BatchScope::kDepthMax; }
  // Returns how many rows the next request may have; 0 or less: it had better not join.
  int64_t RowsLeft(const WaitingRequests& waiting) const {
    const auto count = static_cast<int64_t>(members_.size());
    const bool is_worth =
        state_.cost.IsWorthTheWait(count + 1, rows_ / count, waiting.WaitingPerThread());
    const bool may_join = is_worth || (is_trial_ && count == 1);
    return may_join ? rows_left(waiting.HasFreeThread()) : 0;
  }

  // Runs all members, and sets the status and the results of each.
  void Run();
  // Runs one member's rows as a run of its own.
  Status RunAlone(Member* member) const {
    return RunOn(member->run, member->inputs, member->rows, &member->results);
  }
  // Turns batching off if a run without writing was to change a variable: a change belongs to one
  // request, and its order counts.
  void RefuseWriting(const Status& ran) const {
    if (ran.code() == Code::kPermissionDenied) state_.Switch(false, ran.message());
  }
  // Runs one member's rows as a run of its own, to compare it: without writing. A compiled model
  // runs them with the rows that a batch may have.
  Status RunToCompare(const Member& member, std::vector<TensorList>* results) const;
  // Turns batching off, because an output of `rows` rows has another number of rows.
  void RefuseRowsOf(int64_t rows) const {
    state_.Switch(false, "an output of a batch of " + std::to_string(rows) +
                             " rows has another number of rows");
  }
  // Notes that a run of a batch, or of a piece of a large request, had so many rows.
  void RecordHot(int64_t padded_rows) const {
    state_.hot_batches.Record(signatures_, outputs_, padded_rows);
  }
  // How far the results of a request are from those of its run alone, and a text with the figures.
  struct Found {
    tensor::Difference::Size size = tensor::Difference::Size::kNone;
    std::string text;
  };
  // Notes how large the values of `results` are, for comparisons.
  void NoteMagnitudes(const std::vector<TensorList>& results) const {
    for (size_t i = 0; i < results.size(); ++i) state_.magnitudes.Note(NamesOf(i), results[i]);
  }
  // Compares the results of a request alone with `joined`, its results `where`.
  Found Compare(const std::vector<TensorList>& alone, const std::vector<TensorList>& joined,
                const std::string& where) const;
  // Runs the work on `inputs`, without a batch.
  Status RunOn(const tensor::RunContext& run, const TensorList& inputs, int64_t rows,
               std::vector<TensorList>* results) const;

 private:
  int64_t rows_left(bool is_thread_free) const { return RowsMax(is_thread_free) - rows_; }
  bool DoesTheSame(const OpenBatch& other) const {
    if (&other.servable_ != &servable_ || other.signatures_ != signatures_) return false;
    if (outputs_ == nullptr || other.outputs_ == nullptr) return outputs_ == other.outputs_;
    return *outputs_ == *other.outputs_;
  }
  // Returns the most rows of the batch. If all threads are busy, two requests may join whatever the
  // costs seem to be, so that a wrong measurement of a larger run is corrected.
  int64_t RowsMax(bool is_thread_free) const {
    const int64_t worth = state_.cost.joined_rows_max(is_thread_free);
    if (is_thread_free) return worth;
    const int64_t run_rows_max = servable_.RunRowsMax(state_);
    return std::min(std::max(worth, 2 * members_.front()->rows), run_rows_max);
  }
  void LeaveOutUnwanted(int64_t now_ns);
  Status RunJoined();
  void Divide(const std::vector<TensorList>& results);
  // Compares the batch with single runs if it is to be checked. Returns false if it differs, and
  // refuses what the difference shows.
  bool PassesCheck(const std::vector<TensorList>& results);
  Evidence EvidenceOf() const;
  // Returns "" if the answers of some members are those of single runs, else what differs.
  std::string CompareWithSingleRuns();
  // Returns true if the rows of `member` give something else beside other rows: in a batch of as
  // many rows, at the same place, beside copies of its first row.
  bool DependsOnCompanions(const Member& member) const;
  // Returns the names of the outputs in result `index` of a run.
  std::vector<std::string> NamesOf(size_t index) const;
  int64_t LastDeadlineNs() const;

  const BatchingServable& servable_;
  State& state_;
  const std::vector<const tensor::Signature*>& signatures_;
  const tensor::OutputSet* const outputs_;
  std::vector<Member*> members_;
  tensor::RowLayout layout_;
  int64_t rows_ = 0;
  size_t fetched_count_ = 0;
  bool has_run_ = false;
  bool is_widened_ = false;  // some inputs are padded
  bool is_trial_ = false;    // two requests may join whatever the wait
};

Status OpenBatch::RunOn(const tensor::RunContext& run, const TensorList& inputs, int64_t rows,
                        std::vector<TensorList>* results) const {
  const Servable& inner = *servable_.inner_;
  // For the pieces of a large request; a batch has its slot.
  const SlotHold slot(servable_.settings_.slots.get(), run.deadline_ns);
  if (!slot.may_run()) return NoSlot();
  const int64_t begin_ns = base::MonotonicNs();
  Status ran;
  if (outputs_ != nullptr) {
    results->resize(1);
    ran = inner.Run(*signatures_.front(), *outputs_, run, inputs, &results->front());
  } else {
    auto together = inner.RunTogether(signatures_, run, inputs, results);
    // As if Servable::RunTogether had returned nothing.
    if (!together) return {Code::kUnimplemented, ""};
    ran = std::move(*together);
  }
  if (ran.ok()) state_.cost.Record(rows, base::MonotonicNs() - begin_ns);
  return ran;
}

void OpenBatch::LeaveOutUnwanted(int64_t now_ns) {
  const auto is_wanted = [now_ns](Member* member) {
    const tensor::RunContext& run = member->run;
    if (run.is_cancelled != nullptr && run.is_cancelled->load(std::memory_order_relaxed)) {
      member->status = {Code::kCancelled, "the client cancelled the request before its batch ran"};
    } else if (now_ns >= run.deadline_ns) {
      member->status = {Code::kDeadlineExceeded,
                        "the request's deadline passed before its batch ran"};
    }
    return member->status.ok();
  };
  const auto end = std::stable_partition(members_.begin(), members_.end(), is_wanted);
  for (auto left = end; left != members_.end(); ++left) rows_ -= (*left)->rows;
  members_.erase(end, members_.end());
}

int64_t OpenBatch::LastDeadlineNs() const {
  int64_t last_ns = INT64_MIN;
  for (const Member* member : members_) last_ns = std::max(last_ns, member->run.deadline_ns);
  return last_ns;
}

void OpenBatch::Run() {
  const SlotHold slot(servable_.settings_.slots.get(), LastDeadlineNs());
  const int64_t begin_ns = base::MonotonicNs();
  has_run_ = true;
  LeaveOutUnwanted(begin_ns);
  if (!slot.may_run()) {
    for (Member* member : members_) member->status = NoSlot();
    return;
  }
  if (members_.empty()) return;
  BatchRun run;
  for (const Member* member : members_) {
    run.Add(begin_ns - member->joined_ns);
    member->Enter(metrics::Phase::kRun, begin_ns);
  }
  const int64_t padded_rows = servable_.PaddedRows(rows_);
  if (members_.size() == 1 && padded_rows == rows_) {
    members_.front()->status = RunAlone(members_.front());
  } else if (const Status joined = RunJoined(); !joined.ok()) {
    // One request may have failed the others: each gets its own result. Signatures that do not run
    // together at all have not failed.
    if (joined.code() != Code::kUnimplemented) state_.statistics.RecordFailedBatch();
    RefuseWriting(joined);
    for (Member* member : members_) member->status = RunAlone(member);
  }
  const int64_t end_ns = base::MonotonicNs();
  for (const Member* member : members_) member->Enter(metrics::Phase::kBatch, end_ns);
  state_.statistics.RecordRun(run, rows_, padded_rows - rows_, end_ns - begin_ns);
}

Status OpenBatch::RunJoined() {
  std::vector<tensor::RowRange> parts;
  tensor::RunContext run = WithoutWriting(members_.front()->run);
  run.is_cancelled = nullptr;
  run.deadline_ns = LastDeadlineNs();
  for (const Member* member : members_) parts.push_back({&member->inputs, 0, member->rows});
  const int64_t padded_rows = servable_.PaddedRows(rows_);
  if (layout_.columns.empty()) layout_ = tensor::LayoutOf(members_.front()->inputs);
  // In the batch's own share: its requests end at different times.
  base::ByteBudget::Share joined_share(run.budget);
  TensorList joined;
  {
    const base::ShareScope share_scope(&joined_share, run.reply_limits());
    MILLPOND_RETURN_IF_ERROR(tensor::JoinRows(parts, layout_, padded_rows, &joined));
  }
  std::vector<TensorList> results;
  MILLPOND_RETURN_IF_ERROR(RunOn(run, joined, padded_rows, &results));
  if (!HaveRows(results, padded_rows)) {
    RefuseRowsOf(padded_rows);
    return base::Internal("the outputs of a batch do not have its rows");
  }
  RecordHot(padded_rows);
  Divide(results);
  if (!PassesCheck(results)) return base::Internal("the batch differs from single runs");
  return {};
}

bool OpenBatch::PassesCheck(const std::vector<TensorList>& results) {
  // Wait-free and without a look at the rows once the first batches have been checked.
  const bool may_check = is_widened_ ? state_.ChecksBatchesOf(Evidence::kPaddedInputs)
                                     : state_.ChecksBatchesOf(Evidence::kEqualRows) ||
                                           state_.ChecksBatchesOf(Evidence::kRows);
  const bool is_turn = state_.TakeTurn();
  if (!may_check && !is_turn) return true;
  const Evidence evidence = EvidenceOf();
  if (!state_.TakeCheck(evidence) && !is_turn) return true;
  NoteMagnitudes(results);
  const std::string difference = CompareWithSingleRuns();
  if (difference.empty()) return true;
  if (evidence == Evidence::kPaddedInputs) {
    state_.RefusePadding("with padded inputs " + difference);
  } else {
    state_.Switch(false, difference);
  }
  return false;
}

// Looks at the first and the last request only: to compare all takes time. If others differ, the
// batch shows more than it counts for.
Evidence OpenBatch::EvidenceOf() const {
  if (is_widened_) return Evidence::kPaddedInputs;
  const TensorList first = tensor::ShareRows(members_.front()->inputs, 0, 1);
  const TensorList last = tensor::ShareRows(members_.back()->inputs, 0, 1);
  return tensor::AreTensorsEqual(first, last) ? Evidence::kEqualRows : Evidence::kRows;
}

void OpenBatch::Divide(const std::vector<TensorList>& results) {
  int64_t first = 0;
  for (Member* member : members_) {
    member->results.clear();
    for (const TensorList& result : results) {
      member->results.push_back(tensor::ShareRows(result, first, member->rows));
    }
    first += member->rows;
  }
}

// Compares a few requests, because all of the batch wait meanwhile, and more requests behind them:
// single runs of up to half the batch's rows, and at least one. The last request first, because its
// rows are farthest from their place in a run alone.
std::string OpenBatch::CompareWithSingleRuns() {
  const size_t step = (members_.size() + kComparedMax - 1) / kComparedMax;
  int64_t rows_left = rows_ / 2;
  for (size_t from_end = 0; from_end < members_.size(); from_end += step) {
    Member* const member = members_[members_.size() - 1 - from_end];
    if (from_end > 0 && member->rows > rows_left) continue;
    rows_left -= member->rows;
    std::vector<TensorList> alone;
    const Status ran = RunToCompare(*member, &alone);
    if (!ran.ok() && !IsOfTheModel(ran.code())) continue;
    // A request that fails alone failed the batch too, or its rows are not its own.
    if (!ran.ok()) return "a request that fails alone does not fail in a batch: " + ran.message();
    Found found = Compare(alone, member->results, "a batch of " + std::to_string(rows_) + " rows");
    if (found.size == tensor::Difference::Size::kNone) continue;
    // Padding is no companion: each row is padded in any batch of this size.
    const bool is_shown = found.size == tensor::Difference::Size::kLarge || is_widened_;
    if (is_shown || DependsOnCompanions(*member)) return std::move(found.text);
  }
  return "";
}

OpenBatch::Found OpenBatch::Compare(const std::vector<TensorList>& alone,
                                    const std::vector<TensorList>& joined,
                                    const std::string& where) const {
  Found worst;
  for (size_t i = 0; i < alone.size(); ++i) {
    const std::vector<std::string> names = NamesOf(i);
    const tensor::Difference difference =
        tensor::Compare(alone[i], joined[i], state_.magnitudes.Of(names, alone[i]),
                        servable_.settings_.relative_tolerance);
    if (difference.size <= worst.size) continue;
    const std::string name = difference.tensor < names.size() ? names[difference.tensor] : "";
    worst = {difference.size, tensor::Describe(difference, name, where)};
  }
  return worst;
}

Status OpenBatch::RunToCompare(const Member& member, std::vector<TensorList>* results) const {
  const bool is_compiled = servable_.settings_.is_compiled;
  const int64_t rows = is_compiled ? servable_.PaddedRows(member.rows) : member.rows;
  const tensor::RunContext run = WithoutWriting(member.run);
  if (rows == member.rows) return RunOn(run, member.inputs, rows, results);
  TensorList inputs;
  MILLPOND_RETURN_IF_ERROR(tensor::JoinRows({{&member.inputs, 0, member.rows}},
                                            tensor::LayoutOf(member.inputs), rows, &inputs));
  MILLPOND_RETURN_IF_ERROR(RunOn(run, inputs, rows, results));
  if (!HaveRows(*results, rows)) return base::Internal("an output does not have the run's rows");
  for (TensorList& result : *results) result = tensor::ShareRows(result, 0, member.rows);
  return {};
}

bool OpenBatch::DependsOnCompanions(const Member& member) const {
  int64_t first = 0;
  for (const Member* other : members_) {
    if (other == &member) break;
    first += other->rows;
  }
  const auto run = [&](const TensorList& inputs, std::vector<TensorList>* results) {
    return RunOn(WithoutWriting(member.run), inputs, *tensor::CountRows(inputs), results);
  };
  const auto beside_copies = RunBesideCopies({&member.inputs, 0, member.rows}, first,
                                             servable_.PaddedRows(rows_), layout_, run);
  // The request's deadline may have passed: that shows nothing.
  if (!beside_copies.ok()) return false;
  return Compare(member.results, beside_copies.value(), "").size != tensor::Difference::Size::kNone;
}

std::vector<std::string> OpenBatch::NamesOf(size_t index) const {
  std::vector<std::string> names;
  const std::vector<tensor::TensorSpec>& outputs = signatures_[index]->outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs_ == nullptr) {
      names.push_back(signatures_[index]->name + "/" + outputs[i].name);
    } else if (outputs_->Contains(i)) {
      names.push_back(outputs[i].name);
    }
  }
  return names;
}

// --- BatchingServable ---

BatchingServable::BatchingServable(std::unique_ptr<Servable> inner, BatchSettings settings)
    : inner_(std::move(inner)),
      settings_(std::move(settings)),
      joint_state_(std::make_unique<State>("", BatchKeyOfSeveral(inner_->id().name), settings_)) {
  for (const auto& [name, signature] : inner_->signatures()) {
    states_.push_back(
        std::make_unique<State>(name, BatchKeyOf(inner_->id().name, name), settings_));
  }
}

BatchingServable::~BatchingServable() = default;

BatchingServable::State* BatchingServable::Find(const tensor::Signature& signature) const {
  const auto found = std::find_if(states_.begin(), states_.end(),
                                  [&](const auto& state) { return state->name == signature.name; });
  return found == states_.end() ? nullptr : found->get();
}

BatchingServable::State* BatchingServable::FindOn(const tensor::Signature& signature) const {
  State* const state = Find(signature);
  if (state == nullptr || !state->is_on.load(std::memory_order_relaxed)) return nullptr;
  if (!inner_->MayChangeAnswers()) return state;
  state->Switch(false, "a request changed a variable, so the order of requests counts");
  return nullptr;
}

int64_t BatchingServable::PaddedRows(int64_t rows) const {
  const std::vector<int64_t>& allowed = settings_.allowed_rows;
  const auto next = std::lower_bound(allowed.begin(), allowed.end(), rows);
  return next == allowed.end() ? rows : *next;
}

bool BatchingServable::HasRunSize(int64_t rows) const {
  const std::vector<int64_t>& allowed = settings_.allowed_rows;
  return !settings_.is_compiled || allowed.empty() || rows <= allowed.back();
}

int64_t BatchingServable::RunRowsMax(const State& state) const {
  const int64_t rows_max = state.cost.run_rows_max();
  const std::vector<int64_t>& allowed = settings_.allowed_rows;
  if (allowed.empty()) return rows_max;
  const auto above = std::upper_bound(allowed.begin(), allowed.end(), rows_max);
  return above == allowed.begin() ? allowed.front() : *std::prev(above);
}

Status BatchingServable::Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                             const tensor::RunContext& run, const TensorList& inputs,
                             TensorList* result) const {
  State* const state = BatchScope::Current() == nullptr ? nullptr : FindOn(signature);
  if (state == nullptr) return inner_->Run(signature, outputs, run, inputs, result);
  const std::vector<const tensor::Signature*> signatures = {&signature};
  OpenBatch own(*this, state, signatures, &outputs);
  Member member{run, inputs, {}, 0, 0, {}};
  MILLPOND_RETURN_IF_ERROR(RunMember(&own, &member, HasNamedShapes(signature, inputs)));
  *result = std::move(member.results.front());
  return {};
}

std::optional<Status> BatchingServable::RunTogether(
    const std::vector<const tensor::Signature*>& signatures, const tensor::RunContext& run,
    const TensorList& inputs, std::vector<TensorList>* results) const {
  const bool is_batched =
      BatchScope::Current() != nullptr && !joint_state_->is_refused &&
      std::all_of(signatures.begin(), signatures.end(),
                  [this](const tensor::Signature* each) { return FindOn(*each) != nullptr; });
  if (!is_batched) return inner_->RunTogether(signatures, run, inputs, results);
  OpenBatch own(*this, joint_state_.get(), signatures, nullptr);
  Member member{run, inputs, {}, 0, 0, {}};
  const bool has_named_shapes =
      std::all_of(signatures.begin(), signatures.end(),
                  [&](const tensor::Signature* each) { return HasNamedShapes(*each, inputs); });
  Status ran = RunMember(&own, &member, has_named_shapes);
  if (ran.code() == Code::kUnimplemented && ran.message().empty()) return std::nullopt;
  *results = std::move(member.results);
  return ran;
}

Status BatchingServable::RunMember(OpenBatch* own, Member* member, bool has_named_shapes) const {
  BatchScope* const scope = BatchScope::Current();
  const auto rows = has_named_shapes ? tensor::CountRows(member->inputs) : std::nullopt;
  member->rows = rows.value_or(0);
  const int64_t now_ns = base::MonotonicNs();
  member->joined_ns = now_ns;
  member->Enter(metrics::Phase::kBatch, now_ns);
  if (scope->batch_ != nullptr) {
    OpenBatch* const batch = scope->batch_;
    if (rows && batch->TryAdd(*own, member, now_ns)) {
      Fetch(scope, batch, *member);
      if (!batch->has_run()) batch->Run();
      return std::move(member->status);
    }
    // Its requests do not wait for a run that is not theirs.
    if (!batch->has_run()) batch->Run();
  }
  const int64_t piece_rows = RunRowsMax(own->state());
  if (!rows) {
    member->Enter(metrics::Phase::kRun, base::MonotonicNs());
    return own->RunAlone(member);
  }
  // A request of up to twice the rows that seem right runs whole: two pieces would spare others
  // little, and its time corrects a wrong measurement. The settings' bound is strict.
  const int64_t whole_rows = std::min(2 * piece_rows, settings_.rows_max);
  if (member->rows > whole_rows && settings_.splits) return RunInPieces(*own, member, piece_rows);
  own->Begin(member, now_ns);
  OpenBatch* const outer = std::exchange(scope->batch_, own);
  // The replies of the outer batches wait for this run, and should not wait for many.
  scope->begun_count_ += 1;
  if (scope->begun_count_ <= BatchScope::kFetchingMax) Fetch(scope, own, *member);
  scope->begun_count_ -= 1;
  if (!own->has_run()) own->Run();
  scope->batch_ = outer;
  return std::move(member->status);
}

void BatchingServable::Fetch(BatchScope* scope, OpenBatch* batch, const Member& member) const {
  if (scope->depth_ >= BatchScope::kDepthMax) return;
  scope->depth_ += 1;
  // Twice the bytes of the tensors: a message may spell its numbers out.
  const auto row_bytes = static_cast<size_t>(2 * tensor::CountBytes(member.inputs) / member.rows);
  while (!batch->has_run() && batch->TakeFetch()) {
    const int64_t rows_left = batch->RowsLeft(*scope->waiting_);
    if (rows_left <= 0) break;
    const size_t bytes_max = kEnvelopeBytes + row_bytes * static_cast<size_t>(rows_left);
    if (!scope->waiting_->AnswerWaiting(batch->state().key, bytes_max)) break;
  }
  scope->depth_ -= 1;
}

// Each piece is a turn, after which the requests that came meanwhile have theirs.
Status BatchingServable::RunInPieces(const OpenBatch& work, Member* member,
                                     int64_t piece_rows) const {
  BatchScope* const scope = BatchScope::Current();
  work.state().statistics.RecordSplit();
  const tensor::RowLayout layout = tensor::LayoutOf(member->inputs);
  const tensor::RunContext run = WithoutWriting(member->run);
  std::vector<std::vector<TensorList>> pieces;
  for (int64_t first = 0; first < member->rows; first += piece_rows) {
    const int64_t count = std::min(piece_rows, member->rows - first);
    const int64_t begin_ns = base::MonotonicNs();
    member->Enter(metrics::Phase::kRun, begin_ns);
    TensorList inputs;
    const int64_t padded_rows = PaddedRows(count);
    MILLPOND_RETURN_IF_ERROR(
        tensor::JoinRows({{&member->inputs, first, count}}, layout, padded_rows, &inputs));
    const Status ran = work.RunOn(run, inputs, padded_rows, &pieces.emplace_back());
    // No piece has changed anything: the request is whole.
    work.RefuseWriting(ran);
    if (ran.code() == Code::kPermissionDenied) return work.RunAlone(member);
    MILLPOND_RETURN_IF_ERROR(ran);
    if (!HaveRows(pieces.back(), padded_rows)) {
      work.RefuseRowsOf(padded_rows);
      return work.RunAlone(member);
    }
    if (!HaveEqualLayouts(pieces.front(), pieces.back())) {
      work.state().Switch(false, "the rows of an output are wider in one batch than in another");
      return work.RunAlone(member);
    }
    work.RecordHot(padded_rows);
    const int64_t end_ns = base::MonotonicNs();
    BatchRun figures;
    if (first == 0) figures.Add(begin_ns - member->joined_ns);
    work.state().statistics.RecordRun(figures, count, padded_rows - count, end_ns - begin_ns);
    member->Enter(metrics::Phase::kBatch, end_ns);
    if (first + count >= member->rows || std::exchange(scope->is_giving_turns_, true)) continue;
    while (base::MonotonicNs() - end_ns < end_ns - begin_ns &&
           scope->waiting_->AnswerAny(kSmallBytes)) {
    }
    scope->is_giving_turns_ = false;
  }
  MILLPOND_RETURN_IF_ERROR(JoinPieces(pieces, piece_rows, member->rows, &member->results));
  // The whole run takes a thread for as long as all pieces do, without a turn for other requests.
  const bool may_compare = member->rows <= kWholePiecesMax * piece_rows && HasRunSize(member->rows);
  return may_compare && work.state().TakeTurn() ? ComparePieces(work, member) : Status();
}

Status BatchingServable::ComparePieces(const OpenBatch& work, Member* member) const {
  std::vector<TensorList> whole;
  const Status ran = work.RunToCompare(*member, &whole);
  work.RefuseWriting(ran);
  if (ran.code() == Code::kPermissionDenied) return work.RunAlone(member);
  if (!ran.ok()) return {};
  work.NoteMagnitudes(whole);
  // Its answer is that of the whole run. Pieces have other numbers of rows, as other kernels may.
  const std::vector<TensorList> pieces = std::exchange(member->results, std::move(whole));
  const OpenBatch::Found found = work.Compare(member->results, pieces, "pieces");
  if (found.size == tensor::Difference::Size::kLarge) work.state().Switch(false, found.text);
  return {};
}

void BatchingServable::LearnCost(const tensor::Signature& signature, int64_t rows,
                                 int64_t run_ns) const {
  if (State* const state = Find(signature)) state->cost.Record(rows, run_ns);
}

void BatchingServable::NoteVerdict(const tensor::Signature& signature,
                                   const tensor::RowVerdict& verdict) const {
  State* const state = Find(signature);
  if (state == nullptr) return;
  const std::lock_guard<std::mutex> lock(state->mutex);
  state->verdict = verdict;
}

tensor::RowVerdict BatchingServable::VerdictOf(const tensor::Signature& signature) const {
  State* const state = Find(signature);
  if (state == nullptr) return {};
  const std::lock_guard<std::mutex> lock(state->mutex);
  return state->verdict;
}

std::vector<tensor::Magnitude> BatchingServable::NoteMagnitudes(const tensor::Signature& signature,
                                                                const TensorList& result) const {
  State* const state = Find(signature);
  if (state == nullptr) return {};
  std::vector<std::string> names;
  for (const tensor::TensorSpec& output : signature.outputs) names.push_back(output.name);
  state->magnitudes.Note(names, result);
  return state->magnitudes.Of(names, result);
}

void BatchingServable::TurnOn(const tensor::Signature& signature, const BatchChecks& checks) const {
  State* const state = Find(signature);
  if (state == nullptr) return;
  state->CheckBatches(checks);
  if (!joint_state_->is_refused) joint_state_->CheckBatches(checks);
  state->Switch(true, "");
}

void BatchingServable::Refuse(const tensor::Signature& signature, std::string reason) const {
  if (State* const state = Find(signature)) state->Switch(false, std::move(reason));
}

void BatchingServable::RefusePadding(const tensor::Signature& signature,
                                     const std::string& reason) const {
  if (State* const state = Find(signature)) state->RefusePadding(reason);
}

int64_t BatchingServable::BatchRows(int64_t rows) const {
  return PaddedRows(std::min(rows, settings_.rows_max));
}

std::vector<HotBatch> BatchingServable::ListHotBatches() const {
  std::vector<HotBatch> all = joint_state_->hot_batches.Batches();
  for (const auto& state : states_) {
    for (HotBatch& batch : state->hot_batches.Batches()) all.push_back(std::move(batch));
  }
  SortByCount(&all);
  return all;
}

std::vector<SignatureBatching> BatchingServable::Batching() const {
  std::vector<SignatureBatching> all;
  for (const auto& state : states_) {
    const std::lock_guard<std::mutex> lock(state->mutex);
    all.push_back({state->name, state->is_on,
                   state->is_on ? state->padding_refusal : state->refusal, state->verdict,
                   state->cost.joined_rows_max(/*is_thread_free=*/false),
                   state->statistics.Figures()});
  }
  const BatchFigures joint = joint_state_->statistics.Figures();
  if (joint.run_count > 0) {
    const std::lock_guard<std::mutex> lock(joint_state_->mutex);
    const bool is_on = !joint_state_->is_refused;
    all.push_back({"",
                   is_on,
                   is_on ? "" : joint_state_->refusal,
                   {},
                   joint_state_->cost.joined_rows_max(/*is_thread_free=*/false),
                   joint});
  }
  return all;
}

}  // namespace millpond::servable
