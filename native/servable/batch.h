#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/servable/batch_queue.h"
#include "native/servable/batch_size.h"
#include "native/servable/batched_signature.h"
#include "native/servable/prepared_run.h"
#include "native/tensor/tensor_compare.h"
#include "native/tensor/tensor_rows.h"

namespace millpond::servable {

// Returns true if a run that fails with `code` shows something about its model. A client that left,
// memory pressure and a busy machine show nothing.
bool IsOfTheModel(base::Code code);

// Rows that were copied into new tensors. They are counted in the budget as long as they exist, but
// in no request's share, because the requests of a batch end at different times.
struct JoinedRows {
  base::ByteBudget::Share share;
  tensor::TensorList tensors;
};

// Joins rows as tensor::JoinRows does, on behalf of a run with `context`.
base::Status JoinRows(const std::vector<tensor::RowRange>& parts, const tensor::RowLayout& layout,
                      int64_t rows, const tensor::RunContext& context, JoinedRows* joined);

// Returns the results of rows `own` at row `first` of a run of `rows` rows, beside copies of their
// first row. Rounding is then the same as beside other rows, because the sums have the same order.
// `run` runs inputs, with the layout `layout`, and sets the results. Returns the error of a run
// without results.
base::StatusOr<std::vector<tensor::TensorList>> RunBesideCopies(
    const tensor::RowRange& own, int64_t first, int64_t rows, const tensor::RowLayout& layout,
    const std::function<base::Status(const tensor::TensorList& inputs,
                                     std::vector<tensor::TensorList>* results)>& run);

// Prepared runs that do the same, computed as one run. First it forms (TakeRoom, TryAdd),
// then it runs, once. Alone, the first one runs in the same way on its own inputs.
//
// - A request that is cancelled, or whose deadline has passed, before the batch runs is left out.
// - A batch of several requests, and each piece of a large one, ends before it changes a variable.
//   The requests then run one by one, and the signature is turned off.
// - If a batch fails, its requests run one by one, and each gets its own result.
// - If an output does not have the batch's rows, the requests run one by one, and the signature is
//   turned off. The same holds if two pieces of a large request have outputs of different row
//   layouts, and if an answer differs from that of a single run by more than rounding does.
// - A request whose inputs do not have the shapes that the signature names runs alone, because the
//   graph was analyzed for these shapes only.
//
// Thread: one. Cost: a request alone is not copied. Each request of a batch is copied once, into
// its rows; its outputs are not copied.
class Batch {
 public:
  // Called after a piece of a large request. Answers other requests for up to `ns_max`.
  using GiveTurn = std::function<void(int64_t ns_max)>;

  // Begins a batch with `first`, which `signature` batches. `inner` computes. Borrows all.
  Batch(const Servable& inner, const BatchSettings& settings, BatchedSignature* signature,
        PreparedRun* first);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  BatchKey key() const { return signature_.key; }
  // Counts a request that is now to be taken from `waiting`, and returns the most bytes that its
  // message may have. Returns nullopt if the batch had better run now.
  std::optional<size_t> TakeRoom(const WaitingRequests& waiting);
  // Adds a run if it does the same and its rows fit.
  bool TryAdd(PreparedRun* run);
  // Runs all, and sets the status and the results of each. `give_turn` may be empty.
  void Run(const GiveTurn& give_turn);

 private:
  struct Member {
    PreparedRun* run;
    int64_t rows;
    int64_t joined_ns;
  };
  // The difference of the results of a request from those of its run alone, and a text with the
  // figures.
  struct Found {
    tensor::Difference::Size size = tensor::Difference::Size::kNone;
    std::string text;
  };
  using Results = std::vector<tensor::TensorList>;

  PreparedRun& first() const { return *members_.front().run; }
  // The most rows of a run, padding included.
  int64_t RunRowsMax() const { return settings_.AllowedRows(signature_.cost.run_rows_max()); }

  void RunJoinedOrEach();
  // Leaves out the requests whose answers no client waits for, and sets their status.
  void LeaveOutUnwanted(int64_t now_ns);
  base::Status RunJoined();
  void Divide(const Results& results) const;
  // Runs each member by itself, and sets its status and results.
  void RunEach() const;
  base::Status RunAlone(PreparedRun* run) const;
  // Computes `inputs`, and learns the cost of as many rows.
  base::Status RunOn(const tensor::RunContext& context, const tensor::TensorList& inputs,
                     int64_t rows, Results* results) const;

  base::Status RunInPieces(const GiveTurn& give_turn);
  // Adds the results of `count` rows to `pieces`. Sets `*is_divisible` to false if the request has
  // to run whole.
  base::Status RunPiece(int64_t row, int64_t count, std::vector<Results>* pieces,
                        bool* is_divisible);
  base::Status RunWhole();
  // Runs a request whole after its pieces, and turns batching off if the results differ. Returns
  // the error of a request that must run alone.
  base::Status ComparePieces();

  // Compares the batch with single runs if it is to be checked. Returns false if it differs, and
  // refuses what the difference shows.
  bool PassesCheck(const Results& results) const;
  Evidence EvidenceOf() const;
  // Returns "" if the answers of some members are those of single runs, and otherwise the
  // difference.
  std::string CompareWithSingleRuns() const;
  // Runs one member's rows as a run of its own, to compare it. The run must not write. A compiled
  // model runs them with the rows that a batch may have.
  base::Status RunToCompare(const Member& member, Results* results) const;
  // Compares the results of a request alone with `joined`, its results `where`.
  Found Compare(const Results& alone, const Results& joined, const std::string& where) const;
  // Returns true if the results of `member` depend on the other rows of its batch. Compares them
  // with its results beside copies of its first row, in a batch of as many rows, at the same place.
  bool DependsOnOthers(const Member& member) const;
  // Notes how large the values of `results` are, for comparisons.
  void NoteMagnitudes(const Results& results) const;

  // Turns batching off if a run without writing was to change a variable: a change belongs to one
  // request, and its order counts.
  void RefuseWriting(const base::Status& ran) const;
  // Turns batching off, because an output of `rows` rows has another number of rows.
  void RefuseRowsOf(int64_t rows) const;
  // Notes the rows of a run of a batch, or of a piece of a large request.
  void RecordHot(int64_t padded_rows) const;
  // Returns the names of the outputs in result `index` of a run.
  std::vector<std::string> NamesOf(size_t index) const;
  int64_t LastDeadlineNs() const;

  const Servable& inner_;
  const BatchSettings& settings_;
  BatchedSignature& signature_;
  std::vector<Member> members_;
  FormedBatch formed_;
  bool has_rows_ = false;    // false: its only request runs alone
  bool is_widened_ = false;  // some inputs are padded
  int64_t piece_rows_ = 0;   // 0: no piece is needed
  size_t row_bytes_ = 0;     // of the message of a request, at most, for each row
  tensor::RowLayout layout_;
};

}  // namespace millpond::servable
