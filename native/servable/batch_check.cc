#include "native/servable/batch_check.h"

#include <utility>

#include "native/base/share_scope.h"
#include "native/tensor/tensor_access.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using tensor::TensorList;

// The most requests of a batch that are compared with single runs, if it is checked.
constexpr size_t kComparedMax = 4;

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

base::StatusOr<RunResults> RunBesideCopies(
    const tensor::RowRange& own, int64_t first, int64_t rows, const tensor::RowLayout& layout,
    const std::function<Status(const TensorList&, RunResults*)>& run) {
  const tensor::RowRange copy{own.tensors, own.first, 1};
  std::vector<tensor::RowRange> parts(static_cast<size_t>(first), copy);
  parts.push_back(own);
  parts.resize(parts.size() + static_cast<size_t>(rows - first - own.count), copy);
  TensorList inputs;
  RunResults results;
  MILLPOND_RETURN_IF_ERROR(tensor::JoinRows(parts, layout, rows, &inputs));
  MILLPOND_RETURN_IF_ERROR(run(inputs, &results));
  if (!HaveRows(results, rows)) return base::Internal("an output does not have the run's rows");
  for (TensorList& result : results) result = tensor::ShareRows(result, first, own.count);
  return results;
}

int64_t BatchMembers::CountRows() const {
  int64_t rows = 0;
  for (const BatchMember& member : runs) rows += member.rows;
  return rows;
}

bool BatchCheck::Passes(const BatchMembers& batch, const RunResults& results) const {
  // Checked first, because it is wait-free and looks at no rows once the first batches have been
  // checked.
  const bool may_check = batch.is_widened ? signature_.ChecksBatchesOf(Evidence::kPaddedInputs)
                                          : signature_.ChecksBatchesOf(Evidence::kEqualRows) ||
                                                signature_.ChecksBatchesOf(Evidence::kRows);
  const bool is_sample = signature_.TakeSample(batch.is_widened);
  if (!may_check && !is_sample) return true;
  const Evidence evidence = EvidenceOf(batch);
  if (!signature_.TakeCheck(evidence) && !is_sample) return true;
  NoteMagnitudes(results);
  const std::string difference = CompareWithSingleRuns(batch);
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
Evidence BatchCheck::EvidenceOf(const BatchMembers& batch) {
  if (batch.is_widened) return Evidence::kPaddedInputs;
  const TensorList first_row = tensor::ShareRows(batch.first().inputs, 0, 1);
  const TensorList last_row = tensor::ShareRows(batch.runs.back().run->inputs, 0, 1);
  return tensor::AreTensorsEqual(first_row, last_row) ? Evidence::kEqualRows : Evidence::kRows;
}

// Compares only a few requests, because the whole batch waits meanwhile, and more requests behind
// it. They have at most half of the batch's rows, and there is at least one. The last request comes
// first, because its rows are farthest from their place in a run alone.
std::string BatchCheck::CompareWithSingleRuns(const BatchMembers& batch) const {
  const std::vector<BatchMember>& members = batch.runs;
  const size_t step = (members.size() + kComparedMax - 1) / kComparedMax;
  const int64_t rows = batch.CountRows();
  int64_t rows_left = rows / 2;
  for (size_t from_end = 0; from_end < members.size(); from_end += step) {
    const BatchMember& member = members[members.size() - 1 - from_end];
    if (from_end > 0 && member.rows > rows_left) continue;
    rows_left -= member.rows;
    RunResults alone;
    const Status ran = RunToCompare(member, &alone);
    if (!ran.ok() && !IsOfTheModel(ran.code())) continue;
    // If a request that fails alone did not fail the batch, the other rows of the batch have
    // changed its result.
    if (!ran.ok()) return "a request that fails alone does not fail in a batch: " + ran.message();
    Found found =
        Compare(alone, member.run->results, "a batch of " + std::to_string(rows) + " rows");
    if (found.size == tensor::Difference::Size::kNone) continue;
    // Padding does not count as another request, because each row is padded in any batch of this
    // size.
    const bool is_shown = found.size == tensor::Difference::Size::kLarge || batch.is_widened;
    if (is_shown || DependsOnOthers(batch, member)) return std::move(found.text);
  }
  return "";
}

bool BatchCheck::PassesInPieces(const BatchMember& member) const {
  PreparedRun& run = *member.run;
  const SlotHold slot(settings_.slots.get(), run.context.deadline_ns);
  if (!slot.may_run()) return true;
  RunResults whole;
  const Status ran = RunToCompare(member, &whole);
  runner_.RefuseWriting(ran);
  if (!ran.ok()) return ran.code() != Code::kPermissionDenied;
  NoteMagnitudes(whole);
  // The answer is that of the whole run, because other kernels may compute pieces, which have other
  // numbers of rows.
  const RunResults pieces = std::exchange(run.results, std::move(whole));
  const Found found = Compare(run.results, pieces, "pieces");
  if (found.size == tensor::Difference::Size::kLarge) signature_.Switch(false, found.text);
  return true;
}

BatchCheck::Found BatchCheck::Compare(const RunResults& alone, const RunResults& joined,
                                      const std::string& where) const {
  Found worst;
  for (size_t i = 0; i < alone.size(); ++i) {
    const std::vector<std::string> names = runner_.NamesOf(i);
    const tensor::Difference difference =
        tensor::Compare(alone[i], joined[i], signature_.magnitudes.Of(names, alone[i]),
                        settings_.relative_tolerance);
    if (difference.size <= worst.size) continue;
    const std::string name = difference.tensor < names.size() ? names[difference.tensor] : "";
    worst = {difference.size, tensor::Describe(difference, name, where)};
  }
  return worst;
}

Status BatchCheck::RunToCompare(const BatchMember& member, RunResults* results) const {
  const bool is_compiled = settings_.is_compiled;
  const int64_t rows = is_compiled ? settings_.PaddedRows(member.rows) : member.rows;
  const tensor::RunContext context = WithoutWriting(member.run->context);
  const TensorList& inputs = member.run->inputs;
  if (rows == member.rows) return runner_.Run(context, inputs, rows, results);
  JoinedRows padded;
  MILLPOND_RETURN_IF_ERROR(JoinCountedRows({{&inputs, 0, member.rows}}, tensor::LayoutOf(inputs),
                                           rows, context, &padded));
  MILLPOND_RETURN_IF_ERROR(runner_.Run(context, padded.tensors, rows, results));
  if (!HaveRows(*results, rows)) return base::Internal("an output does not have the run's rows");
  for (TensorList& result : *results) result = tensor::ShareRows(result, 0, member.rows);
  return {};
}

bool BatchCheck::DependsOnOthers(const BatchMembers& batch, const BatchMember& member) const {
  int64_t first_row = 0;
  for (const BatchMember& other : batch.runs) {
    if (other.run == member.run) break;
    first_row += other.rows;
  }
  const tensor::RunContext context = WithoutWriting(member.run->context);
  const auto run = [&](const TensorList& inputs, RunResults* results) {
    return runner_.Run(context, inputs, *tensor::CountRows(inputs), results);
  };
  base::ByteBudget::Share copies(context.budget);
  const base::ShareScope scope(&copies, context.reply_limits());
  const auto beside_copies =
      RunBesideCopies({&member.run->inputs, 0, member.rows}, first_row,
                      settings_.PaddedRows(batch.CountRows()), batch.layout, run);
  // The request's deadline may have passed, which shows nothing about the model.
  if (!beside_copies.ok()) return false;
  return Compare(member.run->results, beside_copies.value(), "").size !=
         tensor::Difference::Size::kNone;
}

void BatchCheck::NoteMagnitudes(const RunResults& results) const {
  for (size_t i = 0; i < results.size(); ++i) {
    signature_.magnitudes.Note(runner_.NamesOf(i), results[i]);
  }
}

}  // namespace millpond::servable
