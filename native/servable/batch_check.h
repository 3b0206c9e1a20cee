#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/servable/batch_runner.h"
#include "native/tensor/tensor_compare.h"
#include "native/tensor/tensor_rows.h"

namespace millpond::servable {

// Returns true if a run that fails with `code` shows something about its model. A client that left,
// memory pressure and a busy machine show nothing.
bool IsOfTheModel(base::Code code);

// Returns the results of rows `own` at row `first` of a run of `rows` rows, beside copies of their
// first row. Rounding is then the same as beside other rows, because the sums have the same order.
// `run` runs inputs, with the layout `layout`, and sets the results. Returns the error of a run
// without results.
base::StatusOr<RunResults> RunBesideCopies(
    const tensor::RowRange& own, int64_t first, int64_t rows, const tensor::RowLayout& layout,
    const std::function<base::Status(const tensor::TensorList& inputs, RunResults* results)>& run);

// The requests of a batch, in the order of their rows.
struct BatchMembers {
  int64_t CountRows() const;
  const PreparedRun& first() const { return *runs.front().run; }

  std::vector<BatchMember> runs;
  tensor::RowLayout layout;  // empty until the second request joins, or until the batch runs
  bool is_widened = false;   // some inputs are padded
};

// Compares the answers of batches with those of single runs, and turns off what differs by more
// than rounding does: batching, or the padding of inputs.
//
// Thread: one. Borrows the runner. Cost: nothing is copied or run unless a batch is to be checked.
class BatchCheck {
 public:
  explicit BatchCheck(const BatchRunner& runner)
      : runner_(runner), settings_(runner.settings()), signature_(runner.signature()) {}

  // Compares `batch`, whose requests have their parts of `results`, with single runs if it is to be
  // checked. Returns false if it differs, and refuses what the difference shows.
  bool Passes(const BatchMembers& batch, const RunResults& results) const;
  // Runs a request whole after its pieces, and turns batching off if the results differ. Returns
  // false if the request has to run alone, because it changes a variable.
  bool PassesInPieces(const BatchMember& member) const;

 private:
  // The difference of the results of a request from those of its run alone, and a text with the
  // figures.
  struct Found {
    tensor::Difference::Size size = tensor::Difference::Size::kNone;
    std::string text;
  };

  static Evidence EvidenceOf(const BatchMembers& batch);
  // Returns "" if the answers of some members are those of single runs, and otherwise the
  // difference.
  std::string CompareWithSingleRuns(const BatchMembers& batch) const;
  // Runs one member's rows as a run of its own, to compare it. The run must not write. A compiled
  // model runs them with the rows that a batch may have.
  base::Status RunToCompare(const BatchMember& member, RunResults* results) const;
  // Compares the results of a request alone with `joined`, its results `where`.
  Found Compare(const RunResults& alone, const RunResults& joined, const std::string& where) const;
  // Returns true if the results of `member` depend on the other rows of its batch. Compares them
  // with its results beside copies of its first row, in a batch of as many rows, at the same place.
  bool DependsOnOthers(const BatchMembers& batch, const BatchMember& member) const;
  // Notes how large the values of `results` are, for comparisons.
  void NoteMagnitudes(const RunResults& results) const;

  const BatchRunner& runner_;
  const BatchSettings& settings_;
  BatchedSignature& signature_;
};

}  // namespace millpond::servable
