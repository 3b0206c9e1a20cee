#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "native/base/status.h"
#include "native/servable/batch_runner.h"
#include "native/tensor/tensor_rows.h"

namespace millpond::servable {

// A large request that runs in pieces, so that other requests have turns in between.
//
// - A piece ends before it changes a variable. The request then runs whole, and its signature is
//   turned off.
// - The same holds if an output does not have the rows of a piece, and if two pieces have outputs
//   of different row layouts.
// - Some requests are run whole too, and compared (BatchCheck).
//
// Counts the pieces that answer the request, or its run as a whole.
//
// Thread: one. Borrows all. Cost: the inputs are copied once, and so are the outputs.
class PiecewiseRun {
 public:
  // Called after a piece. Answers other requests for up to `ns_max`.
  using GiveTurn = std::function<void(int64_t ns_max)>;

  // Each piece but the last one has `piece_rows` rows.
  PiecewiseRun(const BatchRunner& runner, const BatchMember& member, int64_t piece_rows);

  // Runs the request, and sets its results. `give_turn` may be empty.
  base::Status Run(const GiveTurn& give_turn);

 private:
  struct Piece {
    int64_t rows = 0;
    int64_t begin_ns = 0;
    int64_t run_ns = 0;
    RunResults results;
  };

  // Runs all pieces. Sets `*is_divisible` to false, and stops, if the request has to run whole.
  base::Status RunPieces(const GiveTurn& give_turn, bool* is_divisible);
  base::Status RunPiece(int64_t row, int64_t count, bool* is_divisible);
  // Computes the results of a piece.
  base::Status ComputePiece(int64_t row, Piece* piece, bool* is_divisible);
  base::Status RunWhole() const;
  // Joins the results of the pieces, which have equal layouts.
  base::Status JoinPieces() const;
  void RecordPieces() const;
  // Returns true if the results of the pieces are to be compared.
  bool IsChecked() const;

  PreparedRun& run() const { return *member_.run; }

  const BatchRunner& runner_;
  const BatchMember& member_;
  const int64_t piece_rows_;
  const tensor::RowLayout layout_;
  std::vector<Piece> pieces_;
};

}  // namespace millpond::servable
