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

Status PiecewiseRun::Run(const GiveTurn& give_turn) {
  runner_.signature().statistics.RecordSplit();
  bool is_divisible = true;
  Status ran = RunPieces(give_turn, &is_divisible);
  if (ran.ok() && is_divisible) ran = JoinPieces();
  if (ran.ok() && is_divisible && IsChecked()) {
    is_divisible = BatchCheck(runner_).PassesInPieces(member_);
  }
  if (!is_divisible) return RunWhole();
  RecordPieces();
  return ran;
}

// After each piece, the requests that came meanwhile have their turn.
Status PiecewiseRun::RunPieces(const GiveTurn& give_turn, bool* is_divisible) {
  const int64_t rows = member_.rows;
  for (int64_t row = 0; row < rows; row += piece_rows_) {
    const int64_t count = std::min(piece_rows_, rows - row);
    MILLPOND_RETURN_IF_ERROR(RunPiece(row, count, is_divisible));
    if (!*is_divisible) return {};
    if (row + count < rows && give_turn) give_turn(pieces_.back().run_ns);
  }
  return {};
}

Status PiecewiseRun::RunPiece(int64_t row, int64_t count, bool* is_divisible) {
  const SlotHold slot(runner_.settings().slots.get(), run().context.deadline_ns);
  if (!slot.may_run()) return NoSlot();
  Piece& piece = pieces_.emplace_back();
  piece.rows = count;
  piece.begin_ns = base::MonotonicNs();
  run().Enter(metrics::Phase::kRun, piece.begin_ns);
  Status ran = ComputePiece(row, &piece, is_divisible);
  const int64_t end_ns = base::MonotonicNs();
  run().Enter(metrics::Phase::kBatch, end_ns);
  piece.run_ns = end_ns - piece.begin_ns;
  return ran;
}

Status PiecewiseRun::ComputePiece(int64_t row, Piece* piece, bool* is_divisible) {
  const tensor::RunContext context = WithoutWriting(run().context);
  const int64_t padded_rows = runner_.settings().PaddedRows(piece->rows);
  JoinedRows joined;
  MILLPOND_RETURN_IF_ERROR(
      JoinCountedRows({{&run().inputs, row, piece->rows}}, layout_, padded_rows, context, &joined));
  Status ran = runner_.Run(context, joined.tensors, padded_rows, &piece->results);
  runner_.RefuseWriting(ran);
  // The piece that was refused has changed nothing, so the request can still run whole.
  *is_divisible = ran.code() != Code::kPermissionDenied;
  if (!*is_divisible) return {};
  MILLPOND_RETURN_IF_ERROR(ran);
  *is_divisible = false;
  if (!HaveRows(piece->results, padded_rows)) {
    runner_.RefuseRowsOf(padded_rows);
  } else if (!HaveEqualLayouts(pieces_.front().results, piece->results)) {
    runner_.signature().Switch(false,
                               "the rows of an output are wider in one batch than in another");
  } else {
    runner_.RecordHot(padded_rows);
    *is_divisible = true;
  }
  return {};
}

// The whole run takes a thread as long as all pieces together do, and gives other requests no turn.
bool PiecewiseRun::IsChecked() const {
  const bool may_compare =
      member_.rows <= kWholePiecesMax * piece_rows_ && runner_.settings().HasRunSize(member_.rows);
  return may_compare && runner_.signature().TakeSample();
}

void PiecewiseRun::RecordPieces() const {
  BatchStatistics& statistics = runner_.signature().statistics;
  for (const Piece& piece : pieces_) {
    BatchRun figures;
    if (&piece == &pieces_.front()) figures.Add(piece.begin_ns - member_.joined_ns);
    const int64_t padding_rows = runner_.settings().PaddedRows(piece.rows) - piece.rows;
    statistics.RecordRun(figures, piece.rows, padding_rows, piece.run_ns);
  }
}

Status PiecewiseRun::RunWhole() const {
  const SlotHold slot(runner_.settings().slots.get(), run().context.deadline_ns);
  return slot.may_run() ? runner_.RunOnOwnInputs(member_) : NoSlot();
}

Status PiecewiseRun::JoinPieces() const {
  run().copies = base::ByteBudget::Share(run().context.budget);
  const base::ShareScope scope(&run().copies, run().context.reply_limits());
  run().results.resize(pieces_.front().results.size());
  for (size_t i = 0; i < run().results.size(); ++i) {
    std::vector<tensor::RowRange> parts;
    for (const Piece& piece : pieces_) parts.push_back({&piece.results[i], 0, piece.rows});
    MILLPOND_RETURN_IF_ERROR(tensor::JoinRows(parts, tensor::LayoutOf(pieces_.front().results[i]),
                                              member_.rows, &run().results[i]));
  }
  return {};
}

}  // namespace millpond::servable
