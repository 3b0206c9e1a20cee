#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "native/servable/batch_cost.h"
#include "native/servable/batch_scope.h"
#include "native/servable/batch_statistics.h"
#include "native/servable/hot_batches.h"
#include "native/servable/servable.h"
#include "native/tensor/row_verdict.h"
#include "native/tensor/tensor_compare.h"
#include "native/tensor/tensor_rows.h"

namespace millpond::servable {

// Limits how many batches run at the same time, for whoever shares it. Thread: any.
class BatchSlots {
 public:
  explicit BatchSlots(int64_t count) : free_count_(count) {}

  // Waits for a free slot until `until_ns`, as of base::MonotonicNs. Returns false if there is none
  // by then. A thread that runs a batch already needs no second slot.
  bool Take(int64_t until_ns);
  void Give();

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  int64_t free_count_;
};

// Returns true if a run that fails with `code` shows something about its model. A client that left,
// memory pressure and a busy machine show nothing.
bool IsOfTheModel(base::Code code);

// Returns what rows `own` give at row `first` of a run of `rows` rows, beside copies of their first
// row: rounding gives the same as beside other rows, because the sums have the same order. `run`
// runs inputs, with the layout `layout`, and sets the results. Returns the error of a run without
// results.
base::StatusOr<std::vector<tensor::TensorList>> RunBesideCopies(
    const tensor::RowRange& own, int64_t first, int64_t rows, const tensor::RowLayout& layout,
    const std::function<base::Status(const tensor::TensorList& inputs,
                                     std::vector<tensor::TensorList>* results)>& run);

// How the requests of one version are batched.
struct BatchSettings {
  // The most rows of a batch, and of each piece of a request that is split.
  int64_t rows_max = 1024;
  // The time that a batch may take, and each piece of a request that is split; 0: any.
  int64_t run_ns_max = 10'000'000;
  // Larger requests are run in pieces.
  bool splits = true;
  // The rows that a batch may have, ascending: a batch is padded with copies of a row. Empty: any.
  std::vector<int64_t> allowed_rows;
  // Inputs that differ in their dimensions after the first are padded with zeros.
  bool pads_inputs = false;
  // The most requests of a signature that may wait for a thread; 0: any.
  int64_t waiting_requests_max = 0;
  std::shared_ptr<BatchSlots> slots;  // null: any number of batches at the same time
  // The model is compiled for each number of rows: the single runs that batches are compared with
  // are padded too, or each would compile another program within a request.
  bool is_compiled = false;
  // How far the answers of a batch may be from those of single runs (tensor::Compare).
  double relative_tolerance = tensor::kRoundingTolerance;
  // Signatures whose graph mixes rows are batched like those whose graph shows nothing.
  bool may_mix_rows = false;
};

// Returns `settings` for a model that is compiled for each number of rows. Unless they name sizes,
// batches are padded to a few: powers of two and the largest.
BatchSettings ForCompiledModel(BatchSettings settings);

// Which batches of live requests are compared with single runs.
struct BatchChecks {
  // The first ones: of equal requests, and as many of different ones.
  int64_t first_count = 0;
  // The first ones with padded inputs.
  int64_t first_padded_count = 0;
  // One of BatchingServable::kCheckedEvery, without end. Also of the large requests that run in
  // pieces.
  bool goes_on = false;
};

// If requests of a signature are batched, and how that went.
struct SignatureBatching {
  std::string signature;
  bool is_on = false;
  // The reason why it is off, or on and without padding that the settings ask for; otherwise "".
  std::string refusal;
  tensor::RowVerdict rows;      // what its graph shows
  int64_t joined_rows_max = 0;  // BatchCost, while all threads are busy
  BatchFigures figures;
};

// A servable whose requests share runs: their rows are joined, run once, and divided again.
// BatchScope explains how requests come together.
//
// Each signature is off until TurnOn, and runs then as without this class. A batch holds requests
// of one servable, so of one version, with equal signatures, outputs, dtypes and row shapes.
//
// - A request that is cancelled, or whose deadline has passed, before the batch runs is left out.
// - A run that requests share, and each piece of a large one, ends before it changes a variable.
// The
//   requests then run one by one, and the signature is turned off.
// - If a batch fails, its requests are run one by one, and each gets its own result.
// - If an output does not have the batch's rows, the requests are run one by one, and the signature
//   is turned off. So it is if two pieces of a large request have outputs of different row layouts,
//   and if an answer differs from that of a single run by more than rounding does.
// - A request whose inputs do not have the shapes that the signature names runs alone: what the
// graph
//   shows holds for these shapes.
//
// Thread: any number at once, all methods. Cost of a run that finds no company: a look at the
// queue, and two clock readings. Each request of a batch is copied once more than a request alone,
// into its rows; its outputs are not copied.
class BatchingServable final : public Servable {
 public:
  // So few batches are compared with single runs without end that it costs under 2 % of their time.
  static constexpr uint64_t kCheckedEvery = 64;

  BatchingServable(std::unique_ptr<Servable> inner, BatchSettings settings);
  ~BatchingServable() override;

  const ServableId& id() const override { return inner_->id(); }
  const tensor::SignatureMap& signatures() const override { return inner_->signatures(); }
  const std::string& signature_def_map() const override { return inner_->signature_def_map(); }
  base::Status Prepare(const tensor::Signature& signature,
                       const tensor::OutputSet& outputs) const override {
    return inner_->Prepare(signature, outputs);
  }
  base::Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                   const tensor::RunContext& run, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override;
  std::optional<base::Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                          const tensor::RunContext& run,
                                          const tensor::TensorList& inputs,
                                          std::vector<tensor::TensorList>* results) const override;
  const Session* session() const override { return inner_->session(); }

  // The servable without batches.
  const Servable& inner() const { return *inner_; }
  const BatchSettings& settings() const { return settings_; }
  // Notes that a run of so many rows of `signature` took `run_ns`, so that the first batch has the
  // right size.
  void LearnCost(const tensor::Signature& signature, int64_t rows, int64_t run_ns) const;
  // Notes what the graph shows about a signature's rows: kUnknown until then.
  void NoteVerdict(const tensor::Signature& signature, const tensor::RowVerdict& verdict) const;
  tensor::RowVerdict VerdictOf(const tensor::Signature& signature) const;
  // Returns the magnitudes of all outputs of a signature (tensor::Magnitudes), with those of
  // `result`. They count in later comparisons too.
  std::vector<tensor::Magnitude> NoteMagnitudes(const tensor::Signature& signature,
                                                const tensor::TensorList& result) const;
  // Batches the requests of a signature from now on. The batches of `checks` are compared: some
  // requests, with up to half of the rows, run alone too. If a result differs, the signature is
  // refused, or its padding if the batch was padded.
  void TurnOn(const tensor::Signature& signature, const BatchChecks& checks) const;
  // Does not batch the requests of a signature, because of `reason`.
  void Refuse(const tensor::Signature& signature, std::string reason) const;
  // Does not pad the inputs of a signature: inputs of other sizes run in other batches.
  void RefusePadding(const tensor::Signature& signature, const std::string& reason) const;
  std::vector<SignatureBatching> Batching() const;
  // Returns the batches that were run most often since the load, the most frequent one first: at
  // most HotBatches::kKeptMax of each signature, and of runs of several signatures.
  std::vector<HotBatch> ListHotBatches() const;
  // Returns the rows with which a batch of `rows` rows runs here.
  int64_t BatchRows(int64_t rows) const;

 private:
  friend class OpenBatch;
  struct State;
  struct Member;

  State* Find(const tensor::Signature& signature) const;
  State* FindOn(const tensor::Signature& signature) const;
  // Returns the rows of a run of `rows` rows, with its padding.
  int64_t PaddedRows(int64_t rows) const;
  // Returns false if a run of `rows` rows would be compiled for itself.
  bool HasRunSize(int64_t rows) const;
  // Returns the most rows of a run, padding included.
  int64_t RunRowsMax(const State& state) const;
  // Runs `member` in a batch of this thread, or alone if it cannot be batched now, or never:
  // `has_named_shapes` is false.
  base::Status RunMember(OpenBatch* own, Member* member, bool has_named_shapes) const;
  void Fetch(BatchScope* scope, OpenBatch* batch, const Member& member) const;
  base::Status RunInPieces(const OpenBatch& work, Member* member, int64_t piece_rows) const;
  // Runs a request whole after its pieces, and turns batching off if the results differ. Returns
  // the error of a request that only runs alone.
  base::Status ComparePieces(const OpenBatch& work, Member* member) const;

  const std::unique_ptr<Servable> inner_;
  const BatchSettings settings_;
  std::vector<std::unique_ptr<State>> states_;  // of each signature
  const std::unique_ptr<State> joint_state_;    // of runs of several signatures
};

}  // namespace millpond::servable
