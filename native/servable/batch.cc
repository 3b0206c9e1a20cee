#include "native/servable/batch.h"

#include <algorithm>
#include <vector>

#include "native/base/clock.h"
#include "native/tensor/tensor_access.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using tensor::TensorList;

// The names in a request, and the fields around them.
constexpr size_t kEnvelopeBytes = 1024;

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

}  // namespace

// --- How it forms ---

Batch::Batch(const Servable& inner, const BatchSettings& settings, BatchedSignature* signature,
             PreparedRun* first)
    : runner_(inner, settings, signature, first) {
  const int64_t now_ns = base::MonotonicNs();
  first->Enter(metrics::Phase::kBatch, now_ns);
  const auto rows = tensor::CountRows(first->inputs);
  has_rows_ = rows.has_value() && HasNamedShapes(*first);
  members_.runs.push_back({first, rows.value_or(0), now_ns});
  if (!has_rows_) return;
  formed_ = {1, *rows, *rows};
  // A request of up to twice the rows that seem right runs whole, because two pieces would spare
  // other requests little, and its time corrects a wrong measurement. The settings' bound is
  // strict.
  const int64_t piece_rows = RunRowsMax();
  if (settings.splits && *rows > std::min(2 * piece_rows, settings.rows_max)) {
    piece_rows_ = piece_rows;
    return;
  }
  formed_.is_trial =
      signature->begun_count.fetch_add(1, std::memory_order_relaxed) % kTrialEvery == 0;
  // Twice the bytes of the tensors: a message may spell its numbers out.
  row_bytes_ = static_cast<size_t>(2 * tensor::CountBytes(first->inputs) / *rows);
}

int64_t Batch::RunRowsMax() const {
  return runner_.settings().AllowedRows(runner_.signature().cost.run_rows_max());
}

std::optional<size_t> Batch::TakeRoom(const WaitingRequests& waiting) {
  if (!has_rows_ || piece_rows_ > 0) return {};
  room_ = RoomForNextRequest(formed_, runner_.signature().cost, RunRowsMax(),
                             {waiting.HasFreeThread(), waiting.WaitingPerThread()});
  if (room_.sought_rows == 0) return {};
  formed_.taken_count += 1;
  return kEnvelopeBytes + row_bytes_ * static_cast<size_t>(room_.sought_rows);
}

bool Batch::TryAdd(PreparedRun* run) {
  if (!run->DoesTheSame(first()) || !HasNamedShapes(*run)) return false;
  const auto rows = tensor::CountRows(run->inputs);
  if (!rows || *rows > room_.rows_max) return false;
  if (members_.layout.columns.empty()) members_.layout = tensor::LayoutOf(first().inputs);
  const tensor::RowLayout layout = tensor::LayoutOf(run->inputs);
  if (!(layout == members_.layout)) {
    if (!runner_.signature().pads_inputs || !members_.layout.IsPaddable(layout)) return false;
    members_.layout.Widen(layout);
    members_.is_widened = true;
  }
  members_.runs.push_back({run, *rows, base::MonotonicNs()});
  formed_.request_count += 1;
  formed_.rows += *rows;
  return true;
}

// --- How it runs ---

void Batch::Run(const GiveTurn& give_turn) {
  if (piece_rows_ > 0) {
    if (!LeaveOutUnwanted(base::MonotonicNs())) return;
    first().status = PiecewiseRun(runner_, members_.runs.front(), piece_rows_).Run(give_turn);
    return;
  }
  const SlotHold slot(runner_.settings().slots.get(), LastDeadlineNs());
  const int64_t begin_ns = base::MonotonicNs();
  if (!LeaveOutUnwanted(begin_ns)) return;
  if (slot.may_run()) return RunJoinedOrEach(begin_ns);
  for (const BatchMember& member : members_.runs) member.run->status = NoSlot();
}

bool Batch::LeaveOutUnwanted(int64_t now_ns) {
  const auto is_wanted = [now_ns](const BatchMember& member) {
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
  const auto end = std::stable_partition(members_.runs.begin(), members_.runs.end(), is_wanted);
  for (auto left = end; left != members_.runs.end(); ++left) formed_.rows -= left->rows;
  members_.runs.erase(end, members_.runs.end());
  return !members_.runs.empty();
}

int64_t Batch::LastDeadlineNs() const {
  int64_t last_ns = INT64_MIN;
  for (const BatchMember& member : members_.runs) {
    last_ns = std::max(last_ns, member.run->context.deadline_ns);
  }
  return last_ns;
}

// One request may have failed all of its batch, so each then runs alone and gets its own result.
// An overloaded accelerator refuses the runs of a batch as too late, and single runs would only add
// to the load.
void Batch::RunJoinedOrEach(int64_t begin_ns) {
  const bool is_padded = runner_.settings().PaddedRows(formed_.rows) > formed_.rows;
  if (!has_rows_ || (members_.runs.size() == 1 && !is_padded)) return RunEach();
  EnterAll(metrics::Phase::kRun, begin_ns);
  const Status joined = RunJoined();
  const int64_t end_ns = base::MonotonicNs();
  EnterAll(metrics::Phase::kBatch, end_ns);
  if (joined.ok()) return RecordRun(begin_ns, end_ns);
  if (IsTooLateForAll(joined)) {
    for (const BatchMember& member : members_.runs) member.run->status = joined;
    return;
  }
  runner_.signature().statistics.RecordFailedBatch();
  runner_.RefuseWriting(joined);
  RunEach();
}

bool Batch::IsTooLateForAll(const Status& joined) const {
  // A run without a deadline ends so only by an op of the model.
  return joined.code() == Code::kDeadlineExceeded &&
         LastDeadlineNs() != tensor::RunContext::kNoDeadline;
}

void Batch::EnterAll(metrics::Phase phase, int64_t now_ns) const {
  for (const BatchMember& member : members_.runs) member.run->Enter(phase, now_ns);
}

void Batch::RecordRun(int64_t begin_ns, int64_t end_ns) const {
  BatchRun figures;
  for (const BatchMember& member : members_.runs) figures.Add(begin_ns - member.joined_ns);
  const int64_t padding_rows = runner_.settings().PaddedRows(formed_.rows) - formed_.rows;
  runner_.signature().statistics.RecordRun(figures, formed_.rows, padding_rows, end_ns - begin_ns);
}

Status Batch::RunJoined() {
  tensor::RunContext context = WithoutWriting(first().context);
  context.is_cancelled = nullptr;
  context.deadline_ns = LastDeadlineNs();
  std::vector<tensor::RowRange> parts;
  for (const BatchMember& member : members_.runs) {
    parts.push_back({&member.run->inputs, 0, member.rows});
  }
  const int64_t padded_rows = runner_.settings().PaddedRows(formed_.rows);
  if (members_.layout.columns.empty()) members_.layout = tensor::LayoutOf(first().inputs);
  JoinedRows joined;
  MILLPOND_RETURN_IF_ERROR(JoinCountedRows(parts, members_.layout, padded_rows, context, &joined));
  RunResults results;
  MILLPOND_RETURN_IF_ERROR(runner_.Run(context, joined.tensors, padded_rows, &results));
  if (!HaveRows(results, padded_rows)) {
    runner_.RefuseRowsOf(padded_rows);
    return base::Internal("the outputs of a batch do not have its rows");
  }
  runner_.RecordHot(padded_rows);
  Divide(results);
  if (!BatchCheck(runner_).Passes(members_, results)) {
    return base::Internal("the batch differs from single runs");
  }
  return {};
}

void Batch::Divide(const RunResults& results) const {
  int64_t first_row = 0;
  for (const BatchMember& member : members_.runs) {
    member.run->results.clear();
    for (const TensorList& result : results) {
      member.run->results.push_back(tensor::ShareRows(result, first_row, member.rows));
    }
    first_row += member.rows;
  }
}

void Batch::RunEach() const {
  for (const BatchMember& member : members_.runs) {
    member.run->status = runner_.RunOnOwnInputs(member);
  }
}

}  // namespace millpond::servable
