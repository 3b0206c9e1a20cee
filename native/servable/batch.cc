#include "native/servable/batch.h"

#include <algorithm>
#include <utility>

#include "native/base/clock.h"
#include "native/base/share_scope.h"
#include "native/tensor/tensor_access.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using tensor::TensorList;

// The names in a request, and the fields around them.
constexpr size_t kEnvelopeBytes = 1024;
// The most requests of a batch that are compared with single runs, if it is checked.
constexpr size_t kComparedMax = 4;
// The most pieces of a request that is compared with its run as a whole.
constexpr int64_t kWholePiecesMax = 8;

// Returns true if each tensor has `rows` rows.
bool HaveRows(const std::vector<TensorList>& results, int64_t rows) {
  return std::all_of(results.begin(), results.end(), [rows](const TensorList& result) {
    return tensor::CountRows(result) == rows;
  });
}

// Returns true if the rows of both have the same layout.
bool HaveEqualLayouts(const std::vector<TensorList>& a, const std::vector<TensorList>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const TensorList& one, const TensorList& other) {
                      return tensor::LayoutOf(one) == tensor::LayoutOf(other);
                    });
}

// Returns true if each input has a shape that the signatures name.
bool HasNamedShapes(const PreparedRun& run) {
  const TensorList& inputs = run.inputs;
  return std::all_of(
      run.signatures.begin(), run.signatures.end(), [&](const tensor::Signature* signature) {
        for (size_t i = 0; i < std::min(inputs.size(), signature->inputs.size()); ++i) {
          const tensor::TensorSpec& spec = signature->inputs[i];
          if (!tensor::ShapeFits(tensor::ViewTensor(inputs, i).dims, spec)) return false;
        }
        return true;
      });
}

// Returns the context of a run that ends before it changes a variable: a run that several requests
// share, or that only shows what a model does.
tensor::RunContext WithoutWriting(const tensor::RunContext& run) {
  tensor::RunContext context = run;
  context.may_write = false;
  return context;
}

// Joins the results of the pieces of a request. Each piece but the last one has `piece_rows` rows,
// and all have equal layouts.
Status JoinPieces(const std::vector<std::vector<TensorList>>& pieces, int64_t piece_rows,
                  int64_t rows, PreparedRun* run) {
  run->copies = base::ByteBudget::Share(run->context.budget);
  const base::ShareScope scope(&run->copies, run->context.reply_limits());
  run->results.resize(pieces.front().size());
  for (size_t i = 0; i < run->results.size(); ++i) {
    std::vector<tensor::RowRange> parts;
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      const int64_t first = static_cast<int64_t>(piece) * piece_rows;
      parts.push_back({&pieces[piece][i], 0, std::min(piece_rows, rows - first)});
    }
    MILLPOND_RETURN_IF_ERROR(
        tensor::JoinRows(parts, tensor::LayoutOf(pieces.front()[i]), rows, &run->results[i]));
  }
  return {};
}

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

Status JoinRows(const std::vector<tensor::RowRange>& parts, const tensor::RowLayout& layout,
                int64_t rows, const tensor::RunContext& context, JoinedRows* joined) {
  joined->share = base::ByteBudget::Share(context.budget);
  const base::ShareScope scope(&joined->share, context.reply_limits());
  return tensor::JoinRows(parts, layout, rows, &joined->tensors);
}

// --- How it forms ---

Batch::Batch(const Servable& inner, const BatchSettings& settings, BatchedSignature* signature,
             PreparedRun* first)
    : inner_(inner), settings_(settings), signature_(*signature) {
  const int64_t now_ns = base::MonotonicNs();
  first->Enter(metrics::Phase::kBatch, now_ns);
  const auto rows = HasNamedShapes(*first) ? tensor::CountRows(first->inputs) : std::nullopt;
  has_rows_ = rows.has_value();
  members_.push_back({first, rows.value_or(0), now_ns});
  if (!has_rows_) return;
  formed_ = {1, *rows, *rows};
  // A request of up to twice the rows that seem right runs whole, because two pieces would spare
  // other requests little, and its time corrects a wrong measurement. The settings' bound is
  // strict.
  const int64_t piece_rows = RunRowsMax();
  if (settings_.splits && *rows > std::min(2 * piece_rows, settings_.rows_max)) {
    piece_rows_ = piece_rows;
    return;
  }
  formed_.is_trial =
      signature_.begun_count.fetch_add(1, std::memory_order_relaxed) % kTrialEvery == 0;
  // Twice the bytes of the tensors: a message may spell its numbers out.
  row_bytes_ = static_cast<size_t>(2 * tensor::CountBytes(first->inputs) / *rows);
}

std::optional<size_t> Batch::TakeRoom(const WaitingRequests& waiting) {
  if (!has_rows_ || piece_rows_ > 0) return {};
  const int64_t rows = RowsForNextRequest(formed_, signature_.cost, RunRowsMax(),
                                          {waiting.HasFreeThread(), waiting.WaitingPerThread()});
  if (rows == 0) return {};
  formed_.taken_count += 1;
  return kEnvelopeBytes + row_bytes_ * static_cast<size_t>(rows);
}

bool Batch::TryAdd(PreparedRun* run) {
  if (!run->DoesTheSame(first()) || !HasNamedShapes(*run)) return false;
  const auto rows = tensor::CountRows(run->inputs);
  const int64_t rows_max = RowsOfBatchMax(formed_, signature_.cost, RunRowsMax());
  if (!rows || *rows > rows_max - formed_.rows) return false;
  if (layout_.columns.empty()) layout_ = tensor::LayoutOf(first().inputs);
  const tensor::RowLayout layout = tensor::LayoutOf(run->inputs);
  if (!(layout == layout_)) {
    if (!signature_.pads_inputs || !layout_.IsPaddable(layout)) return false;
    layout_.Widen(layout);
    is_widened_ = true;
  }
  members_.push_back({run, *rows, base::MonotonicNs()});
  formed_.request_count += 1;
  formed_.rows += *rows;
  return true;
}

// --- How it runs ---

void Batch::Run(const GiveTurn& give_turn) {
  if (piece_rows_ > 0) {
    first().status = RunInPieces(give_turn);
    return;
  }
  const SlotHold slot(settings_.slots.get(), LastDeadlineNs());
  const int64_t begin_ns = base::MonotonicNs();
  LeaveOutUnwanted(begin_ns);
  BatchRun figures;
  for (const Member& member : members_) {
    figures.Add(begin_ns - member.joined_ns);
    member.run->Enter(metrics::Phase::kRun, begin_ns);
    if (!slot.may_run()) member.run->status = NoSlot();
  }
  if (members_.empty() || !slot.may_run()) return;
  if (!has_rows_) return RunEach();
  RunJoinedOrEach();
  const int64_t end_ns = base::MonotonicNs();
  for (const Member& member : members_) member.run->Enter(metrics::Phase::kBatch, end_ns);
  const int64_t padding_rows = settings_.PaddedRows(formed_.rows) - formed_.rows;
  signature_.statistics.RecordRun(figures, formed_.rows, padding_rows, end_ns - begin_ns);
}

void Batch::LeaveOutUnwanted(int64_t now_ns) {
  const auto is_wanted = [now_ns](const Member& member) {
    const tensor::RunContext& context = member.run->context;
    if (context.is_cancelled != nullptr && context.is_cancelled->load(std::memory_order_relaxed)) {
      member.run->status = {Code::kCancelled,
                            "the client cancelled the request before its batch ran"};
    } else if (now_ns >= context.deadline_ns) {
      member.run->status = {Code::kDeadlineExceeded,
                            "the request's deadline passed before its batch ran"};
    }
    return member.run->status.ok();
  };
  const auto end = std::stable_partition(members_.begin(), members_.end(), is_wanted);
  for (auto left = end; left != members_.end(); ++left) formed_.rows -= left->rows;
  members_.erase(end, members_.end());
}

int64_t Batch::LastDeadlineNs() const {
  int64_t last_ns = INT64_MIN;
  for (const Member& member : members_)
    last_ns = std::max(last_ns, member.run->context.deadline_ns);
  return last_ns;
}

// One request may have failed all of its batch, so each then runs alone and gets its own result.
void Batch::RunJoinedOrEach() {
  if (members_.size() == 1 && settings_.PaddedRows(formed_.rows) == formed_.rows) return RunEach();
  const Status joined = RunJoined();
  if (joined.ok()) return;
  signature_.statistics.RecordFailedBatch();
  RefuseWriting(joined);
  RunEach();
}

Status Batch::RunJoined() {
  tensor::RunContext context = WithoutWriting(first().context);
  context.is_cancelled = nullptr;
  context.deadline_ns = LastDeadlineNs();
  std::vector<tensor::RowRange> parts;
  for (const Member& member : members_) parts.push_back({&member.run->inputs, 0, member.rows});
  const int64_t padded_rows = settings_.PaddedRows(formed_.rows);
  if (layout_.columns.empty()) layout_ = tensor::LayoutOf(first().inputs);
  JoinedRows joined;
  MILLPOND_RETURN_IF_ERROR(JoinRows(parts, layout_, padded_rows, context, &joined));
  Results results;
  MILLPOND_RETURN_IF_ERROR(RunOn(context, joined.tensors, padded_rows, &results));
  if (!HaveRows(results, padded_rows)) {
    RefuseRowsOf(padded_rows);
    return base::Internal("the outputs of a batch do not have its rows");
  }
  RecordHot(padded_rows);
  Divide(results);
  if (!PassesCheck(results)) return base::Internal("the batch differs from single runs");
  return {};
}

void Batch::Divide(const Results& results) const {
  int64_t first_row = 0;
  for (const Member& member : members_) {
    member.run->results.clear();
    for (const TensorList& result : results) {
      member.run->results.push_back(tensor::ShareRows(result, first_row, member.rows));
    }
    first_row += member.rows;
  }
}

void Batch::RunEach() const {
  for (const Member& member : members_) member.run->status = RunAlone(member.run);
}

Status Batch::RunAlone(PreparedRun* run) const {
  const auto rows = tensor::CountRows(run->inputs);
  return RunOn(run->context, run->inputs, rows.value_or(0), &run->results);
}

Status Batch::RunOn(const tensor::RunContext& context, const TensorList& inputs, int64_t rows,
                    Results* results) const {
  const int64_t begin_ns = base::MonotonicNs();
  const Status ran = Compute(inner_, first(), context, inputs, results);
  if (ran.ok()) signature_.cost.Record(rows, base::MonotonicNs() - begin_ns);
  return ran;
}

// --- A large request ---

// After each piece, the requests that came meanwhile have their turn.
Status Batch::RunInPieces(const GiveTurn& give_turn) {
  const int64_t rows = formed_.rows;
  signature_.statistics.RecordSplit();
  layout_ = tensor::LayoutOf(first().inputs);
  std::vector<Results> pieces;
  for (int64_t row = 0; row < rows; row += piece_rows_) {
    const int64_t count = std::min(piece_rows_, rows - row);
    const int64_t begin_ns = base::MonotonicNs();
    first().Enter(metrics::Phase::kRun, begin_ns);
    bool is_divisible = true;
    const Status ran = RunPiece(row, count, &pieces, &is_divisible);
    if (!is_divisible) return RunWhole();
    MILLPOND_RETURN_IF_ERROR(ran);
    const int64_t end_ns = base::MonotonicNs();
    BatchRun figures;
    if (row == 0) figures.Add(begin_ns - members_.front().joined_ns);
    signature_.statistics.RecordRun(figures, count, settings_.PaddedRows(count) - count,
                                    end_ns - begin_ns);
    first().Enter(metrics::Phase::kBatch, end_ns);
    if (row + count < rows && give_turn) give_turn(end_ns - begin_ns);
  }
  MILLPOND_RETURN_IF_ERROR(JoinPieces(pieces, piece_rows_, rows, &first()));
  // The whole run takes a thread as long as all pieces together do, and gives other requests no
  // turn.
  const bool may_compare = rows <= kWholePiecesMax * piece_rows_ && settings_.HasRunSize(rows);
  return may_compare && signature_.TakeTurn() ? ComparePieces() : Status();
}

Status Batch::RunPiece(int64_t row, int64_t count, std::vector<Results>* pieces,
                       bool* is_divisible) {
  const SlotHold slot(settings_.slots.get(), first().context.deadline_ns);
  if (!slot.may_run()) return NoSlot();
  const tensor::RunContext context = WithoutWriting(first().context);
  const int64_t padded_rows = settings_.PaddedRows(count);
  JoinedRows joined;
  MILLPOND_RETURN_IF_ERROR(
      JoinRows({{&first().inputs, row, count}}, layout_, padded_rows, context, &joined));
  const Status ran = RunOn(context, joined.tensors, padded_rows, &pieces->emplace_back());
  RefuseWriting(ran);
  // The piece that was refused has changed nothing, so the request can still run whole.
  *is_divisible = ran.code() != Code::kPermissionDenied;
  MILLPOND_RETURN_IF_ERROR(ran);
  if (!HaveRows(pieces->back(), padded_rows)) {
    RefuseRowsOf(padded_rows);
    *is_divisible = false;
  } else if (!HaveEqualLayouts(pieces->front(), pieces->back())) {
    signature_.Switch(false, "the rows of an output are wider in one batch than in another");
    *is_divisible = false;
  } else {
    RecordHot(padded_rows);
  }
  return {};
}

Status Batch::RunWhole() {
  const SlotHold slot(settings_.slots.get(), first().context.deadline_ns);
  return slot.may_run() ? RunAlone(&first()) : NoSlot();
}

Status Batch::ComparePieces() {
  const SlotHold slot(settings_.slots.get(), first().context.deadline_ns);
  if (!slot.may_run()) return {};
  Results whole;
  const Status ran = RunToCompare(members_.front(), &whole);
  RefuseWriting(ran);
  if (ran.code() == Code::kPermissionDenied) return RunAlone(&first());
  if (!ran.ok()) return {};
  NoteMagnitudes(whole);
  // The answer is that of the whole run, because other kernels may compute pieces, which have other
  // numbers of rows.
  const Results pieces = std::exchange(first().results, std::move(whole));
  const Found found = Compare(first().results, pieces, "pieces");
  if (found.size == tensor::Difference::Size::kLarge) signature_.Switch(false, found.text);
  return {};
}

// --- Comparison with single runs ---

bool Batch::PassesCheck(const Results& results) const {
  // Checked first, because it is wait-free and looks at no rows once the first batches have been
  // checked.
  const bool may_check = is_widened_ ? signature_.ChecksBatchesOf(Evidence::kPaddedInputs)
                                     : signature_.ChecksBatchesOf(Evidence::kEqualRows) ||
                                           signature_.ChecksBatchesOf(Evidence::kRows);
  const bool is_turn = signature_.TakeTurn();
  if (!may_check && !is_turn) return true;
  const Evidence evidence = EvidenceOf();
  if (!signature_.TakeCheck(evidence) && !is_turn) return true;
  NoteMagnitudes(results);
  const std::string difference = CompareWithSingleRuns();
  if (difference.empty()) return true;
  if (evidence == Evidence::kPaddedInputs) {
    signature_.RefusePadding("with padded inputs " + difference);
  } else {
    signature_.Switch(false, difference);
  }
  return false;
}

// Looks only at the first and the last request, because comparing all takes time. If other requests
// differ, the batch is stronger evidence than it counts as.
Evidence Batch::EvidenceOf() const {
  if (is_widened_) return Evidence::kPaddedInputs;
  const TensorList first_row = tensor::ShareRows(first().inputs, 0, 1);
  const TensorList last_row = tensor::ShareRows(members_.back().run->inputs, 0, 1);
  return tensor::AreTensorsEqual(first_row, last_row) ? Evidence::kEqualRows : Evidence::kRows;
}

// Compares only a few requests, because the whole batch waits meanwhile, and more requests behind
// it. They have at most half of the batch's rows, and there is at least one. The last request comes
// first, because its rows are farthest from their place in a run alone.
std::string Batch::CompareWithSingleRuns() const {
  const size_t step = (members_.size() + kComparedMax - 1) / kComparedMax;
  int64_t rows_left = formed_.rows / 2;
  for (size_t from_end = 0; from_end < members_.size(); from_end += step) {
    const Member& member = members_[members_.size() - 1 - from_end];
    if (from_end > 0 && member.rows > rows_left) continue;
    rows_left -= member.rows;
    Results alone;
    const Status ran = RunToCompare(member, &alone);
    if (!ran.ok() && !IsOfTheModel(ran.code())) continue;
    // If a request that fails alone did not fail the batch, the other rows of the batch have
    // changed its result.
    if (!ran.ok()) return "a request that fails alone does not fail in a batch: " + ran.message();
    Found found =
        Compare(alone, member.run->results, "a batch of " + std::to_string(formed_.rows) + " rows");
    if (found.size == tensor::Difference::Size::kNone) continue;
    // Padding does not count as another request, because each row is padded in any batch of this
    // size.
    const bool is_shown = found.size == tensor::Difference::Size::kLarge || is_widened_;
    if (is_shown || DependsOnOthers(member)) return std::move(found.text);
  }
  return "";
}

Batch::Found Batch::Compare(const Results& alone, const Results& joined,
                            const std::string& where) const {
  Found worst;
  for (size_t i = 0; i < alone.size(); ++i) {
    const std::vector<std::string> names = NamesOf(i);
    const tensor::Difference difference =
        tensor::Compare(alone[i], joined[i], signature_.magnitudes.Of(names, alone[i]),
                        settings_.relative_tolerance);
    if (difference.size <= worst.size) continue;
    const std::string name = difference.tensor < names.size() ? names[difference.tensor] : "";
    worst = {difference.size, tensor::Describe(difference, name, where)};
  }
  return worst;
}

Status Batch::RunToCompare(const Member& member, Results* results) const {
  const bool is_compiled = settings_.is_compiled;
  const int64_t rows = is_compiled ? settings_.PaddedRows(member.rows) : member.rows;
  const tensor::RunContext context = WithoutWriting(member.run->context);
  const TensorList& inputs = member.run->inputs;
  if (rows == member.rows) return RunOn(context, inputs, rows, results);
  JoinedRows padded;
  MILLPOND_RETURN_IF_ERROR(
      JoinRows({{&inputs, 0, member.rows}}, tensor::LayoutOf(inputs), rows, context, &padded));
  MILLPOND_RETURN_IF_ERROR(RunOn(context, padded.tensors, rows, results));
  if (!HaveRows(*results, rows)) return base::Internal("an output does not have the run's rows");
  for (TensorList& result : *results) result = tensor::ShareRows(result, 0, member.rows);
  return {};
}

bool Batch::DependsOnOthers(const Member& member) const {
  int64_t first_row = 0;
  for (const Member& other : members_) {
    if (other.run == member.run) break;
    first_row += other.rows;
  }
  const tensor::RunContext context = WithoutWriting(member.run->context);
  const auto run = [&](const TensorList& inputs, Results* results) {
    return RunOn(context, inputs, *tensor::CountRows(inputs), results);
  };
  base::ByteBudget::Share copies(context.budget);
  const base::ShareScope scope(&copies, context.reply_limits());
  const auto beside_copies = RunBesideCopies({&member.run->inputs, 0, member.rows}, first_row,
                                             settings_.PaddedRows(formed_.rows), layout_, run);
  // The request's deadline may have passed, which shows nothing about the model.
  if (!beside_copies.ok()) return false;
  return Compare(member.run->results, beside_copies.value(), "").size !=
         tensor::Difference::Size::kNone;
}

void Batch::NoteMagnitudes(const Results& results) const {
  for (size_t i = 0; i < results.size(); ++i) signature_.magnitudes.Note(NamesOf(i), results[i]);
}

// --- What runs show ---

void Batch::RefuseWriting(const Status& ran) const {
  if (ran.code() == Code::kPermissionDenied) signature_.Switch(false, ran.message());
}

void Batch::RefuseRowsOf(int64_t rows) const {
  signature_.Switch(false, "an output of a batch of " + std::to_string(rows) +
                               " rows has another number of rows");
}

void Batch::RecordHot(int64_t padded_rows) const {
  signature_.hot_batches.Record(first().signatures, first().outputs ? &*first().outputs : nullptr,
                                padded_rows);
}

std::vector<std::string> Batch::NamesOf(size_t index) const {
  std::vector<std::string> names;
  const tensor::Signature& signature = *first().signatures[index];
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (!first().outputs) {
      names.push_back(signature.name + "/" + signature.outputs[i].name);
    } else if (first().outputs->Contains(i)) {
      names.push_back(signature.outputs[i].name);
    }
  }
  return names;
}

}  // namespace millpond::servable
