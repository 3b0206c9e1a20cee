#include "native/servable/piecewise_run.h"

#include <algorithm>

#include "native/base/clock.h"
#include "native/base/share_scope.h"
#include "native/servable/batch_check.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using tensor::TensorList;

// The most pieces of a request that is compared with its run as a whole.
constexpr int64_t kWholePiecesMax = 8;

// Returns true if the rows of both have the same layout.
bool HaveEqualLayouts(const RunResults& a, const RunResults& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const TensorList& one, const TensorList& other) {
                      return tensor::LayoutOf(one) == tensor::LayoutOf(other);
                    });
}

}  // namespace

PiecewiseRun::PiecewiseRun(const BatchRunner& runner, const BatchMember& member, int64_t piece_rows)
    : runner_(runner),
      member_(member),
      piece_rows_(piece_rows),
      layout_(tensor::LayoutOf(member.run->inputs)) {}

// After each piece, the requests that came meanwhile have their turn.
Status PiecewiseRun::Run(const GiveTurn& give_turn) {
  const int64_t rows = member_.rows;
  const BatchSettings& settings = runner_.settings();
  BatchStatistics& statistics = runner_.signature().statistics;
  statistics.RecordSplit();
  for (int64_t row = 0; row < rows; row += piece_rows_) {
    const int64_t count = std::min(piece_rows_, rows - row);
    const int64_t begin_ns = base::MonotonicNs();
    run().Enter(metrics::Phase::kRun, begin_ns);
    bool is_divisible = true;
    const Status ran = RunPiece(row, count, &is_divisible);
    if (!is_divisible) return RunWhole();
    MILLPOND_RETURN_IF_ERROR(ran);
    const int64_t end_ns = base::MonotonicNs();
    BatchRun figures;
    if (row == 0) figures.Add(begin_ns - member_.joined_ns);
    statistics.RecordRun(figures, count, settings.PaddedRows(count) - count, end_ns - begin_ns);
    run().Enter(metrics::Phase::kBatch, end_ns);
    if (row + count < rows && give_turn) give_turn(end_ns - begin_ns);
  }
  MILLPOND_RETURN_IF_ERROR(JoinPieces());
  // The whole run takes a thread as long as all pieces together do, and gives other requests no
  // turn.
  const bool may_compare = rows <= kWholePiecesMax * piece_rows_ && settings.HasRunSize(rows);
  if (!may_compare || !runner_.signature().TakeTurn()) return {};
  return BatchCheck(runner_).ComparePieces(member_);
}

Status PiecewiseRun::RunPiece(int64_t row, int64_t count, bool* is_divisible) {
  const SlotHold slot(runner_.settings().slots.get(), run().context.deadline_ns);
  if (!slot.may_run()) return NoSlot();
  const tensor::RunContext context = WithoutWriting(run().context);
  const int64_t padded_rows = runner_.settings().PaddedRows(count);
  JoinedRows joined;
  MILLPOND_RETURN_IF_ERROR(
      JoinCountedRows({{&run().inputs, row, count}}, layout_, padded_rows, context, &joined));
  const Status ran = runner_.Run(context, joined.tensors, padded_rows, &pieces_.emplace_back());
  runner_.RefuseWriting(ran);
  // The piece that was refused has changed nothing, so the request can still run whole.
  *is_divisible = ran.code() != Code::kPermissionDenied;
  MILLPOND_RETURN_IF_ERROR(ran);
  if (!HaveRows(pieces_.back(), padded_rows)) {
    runner_.RefuseRowsOf(padded_rows);
    *is_divisible = false;
  } else if (!HaveEqualLayouts(pieces_.front(), pieces_.back())) {
    runner_.signature().Switch(false,
                               "the rows of an output are wider in one batch than in another");
    *is_divisible = false;
  } else {
    runner_.RecordHot(padded_rows);
  }
  return {};
}

Status PiecewiseRun::RunWhole() const {
  const SlotHold slot(runner_.settings().slots.get(), run().context.deadline_ns);
  return slot.may_run() ? runner_.RunOnOwnInputs(&run()) : NoSlot();
}

Status PiecewiseRun::JoinPieces() const {
  run().copies = base::ByteBudget::Share(run().context.budget);
  const base::ShareScope scope(&run().copies, run().context.reply_limits());
  run().results.resize(pieces_.front().size());
  for (size_t i = 0; i < run().results.size(); ++i) {
    std::vector<tensor::RowRange> parts;
    for (size_t piece = 0; piece < pieces_.size(); ++piece) {
      const int64_t first = static_cast<int64_t>(piece) * piece_rows_;
      parts.push_back({&pieces_[piece][i], 0, std::min(piece_rows_, member_.rows - first)});
    }
    MILLPOND_RETURN_IF_ERROR(tensor::JoinRows(parts, tensor::LayoutOf(pieces_.front()[i]),
                                              member_.rows, &run().results[i]));
  }
  return {};
}

}  // namespace millpond::servable
