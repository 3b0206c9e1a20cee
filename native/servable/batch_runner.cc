#include "native/servable/batch_runner.h"

#include <algorithm>

#include "native/base/clock.h"
#include "native/base/giving_way.h"
#include "native/base/share_scope.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using tensor::TensorList;

}  // namespace

Status JoinCountedRows(const std::vector<tensor::RowRange>& parts, const tensor::RowLayout& layout,
                       int64_t rows, const tensor::RunContext& context, JoinedRows* joined) {
  joined->share = base::ByteBudget::Share(context.budget);
  const base::ShareScope scope(&joined->share, context.reply_limits());
  return tensor::JoinRows(parts, layout, rows, &joined->tensors);
}

tensor::RunContext WithoutWriting(const tensor::RunContext& run) {
  tensor::RunContext context = run;
  context.may_write = false;
  return context;
}

bool HaveRows(const RunResults& results, int64_t rows) {
  return std::all_of(results.begin(), results.end(), [rows](const TensorList& result) {
    return tensor::CountRows(result) == rows;
  });
}

Status NoSlot() {
  return {Code::kDeadlineExceeded,
          "the request's deadline passed while as many batches ran as may (num_batch_threads)"};
}

Status BatchRunner::Run(const tensor::RunContext& context, const TensorList& inputs, int64_t rows,
                        RunResults* results) const {
  const int64_t begin_ns = base::MonotonicNs();
  Status ran = Compute(inner_, example_, context, inputs, results);
  if (ran.ok() && !base::GivesWay()) signature_.cost.Record(rows, base::MonotonicNs() - begin_ns);
  return ran;
}

Status BatchRunner::RunOnOwnInputs(const BatchMember& member) const {
  PreparedRun& run = *member.run;
  const int64_t begin_ns = base::MonotonicNs();
  run.Enter(metrics::Phase::kRun, begin_ns);
  Status ran = Compute(inner_, example_, run.context, run.inputs, &run.results);
  const int64_t end_ns = base::MonotonicNs();
  run.Enter(metrics::Phase::kBatch, end_ns);
  if (ran.ok() && !base::GivesWay()) signature_.cost.Record(member.rows, end_ns - begin_ns);
  BatchRun figures;
  figures.Add(begin_ns - member.joined_ns);
  signature_.statistics.RecordRun(figures, member.rows, /*padding_rows=*/0, end_ns - begin_ns);
  return ran;
}

void BatchRunner::RefuseWriting(const Status& ran) const {
  if (ran.code() == Code::kPermissionDenied) signature_.Switch(false, ran.message());
}

void BatchRunner::RefuseRowsOf(int64_t rows) const {
  signature_.Switch(false, "an output of a batch of " + std::to_string(rows) +
                               " rows has another number of rows");
}

void BatchRunner::RecordHot(int64_t padded_rows) const {
  signature_.hot_batches.Record(example_.signatures,
                                example_.outputs ? &*example_.outputs : nullptr, padded_rows);
}

std::vector<std::string> BatchRunner::NamesOf(size_t index) const {
  std::vector<std::string> names;
  const tensor::Signature& signature = *example_.signatures[index];
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (!example_.outputs) {
      names.push_back(signature.name + "/" + signature.outputs[i].name);
    } else if (example_.outputs->Contains(i)) {
      names.push_back(signature.outputs[i].name);
    }
  }
  return names;
}

}  // namespace millpond::servable
