#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/servable/batch_registry.h"
#include "native/servable/batch_settings.h"
#include "native/servable/batch_statistics.h"
#include "native/servable/batched_signature.h"
#include "native/servable/hot_batches.h"
#include "native/servable/prepared_run.h"
#include "native/servable/servable.h"
#include "native/tensor/row_verdict.h"
#include "native/tensor/tensor_compare.h"

namespace millpond::servable {

// The state of batching for a signature, with its figures.
struct SignatureBatching {
  std::string signature;
  bool is_on = false;
  // The reason why batching is off, or why it does not pad although the settings ask for that;
  // otherwise "".
  std::string refusal;
  tensor::RowVerdict rows;      // what its graph shows
  int64_t joined_rows_max = 0;  // BatchCost, while all threads are busy
  BatchFigures figures;
};

// A servable whose requests share runs (answer_requests.h). For each signature it knows if it is
// batched, the cost of a run and of a row, and the figures of its batches. Run and RunTogether
// compute one request, without a batch.
//
// Until TurnOn, the requests of a signature run as without this class. A batch holds requests of
// one servable, so of one version, with equal signatures, outputs, dtypes and row shapes.
//
// Thread: any number at once, all methods.
class BatchingServable final : public Servable {
 public:
  BatchingServable(std::unique_ptr<Servable> inner, BatchSettings settings);
  ~BatchingServable() override;

  const ServableId& id() const override { return inner_->id(); }
  const tensor::SignatureMap& signatures() const override { return inner_->signatures(); }
  const std::string& signature_def_map() const override { return inner_->signature_def_map(); }
  base::Status MakeCallable(const tensor::Signature& signature,
                            const tensor::OutputSet& outputs) const override {
    return inner_->MakeCallable(signature, outputs);
  }
  base::Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                   const tensor::RunContext& run, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    return inner_->Run(signature, outputs, run, inputs, result);
  }
  std::optional<base::Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                          const tensor::RunContext& run,
                                          const tensor::TensorList& inputs,
                                          std::vector<tensor::TensorList>* results) const override {
    return inner_->RunTogether(signatures, run, inputs, results);
  }
  bool CompilesEachShape() const override { return inner_->CompilesEachShape(); }
  const Session* session() const override { return inner_->session(); }
  const BatchingServable* batching() const override { return this; }

  // Returns what is known of the signature of `run`, or of its signatures together, if its requests
  // are batched now; otherwise null. Turns the signatures off first if a request has changed a
  // variable, because the order of requests counts from then on.
  BatchedSignature* FindBatched(const PreparedRun& run) const;

  // The keys of its requests, and how many of each may wait.
  BatchedVersion ForQueues() const;

  // The servable without batches.
  const Servable& inner() const { return *inner_; }
  const BatchSettings& settings() const { return settings_; }
  // Notes that a run of `rows` rows of `signature` took `run_ns`, so that the first batch has the
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
  // Stops batching the requests of a signature, because of `reason`.
  void Refuse(const tensor::Signature& signature, std::string reason) const;
  // Stops padding the inputs of a signature, so that inputs of other sizes run in other batches.
  void RefusePadding(const tensor::Signature& signature, const std::string& reason) const;
  std::vector<SignatureBatching> Batching() const;
  // Returns the batches that were run most often since the load, the most frequent one first: at
  // most HotBatches::kKeptMax of each signature, and of runs of several signatures.
  std::vector<HotBatch> ListHotBatches() const;
  // Returns the rows with which a batch of `rows` rows runs here.
  int64_t BatchRows(int64_t rows) const;

 private:
  BatchedSignature* Find(const tensor::Signature& signature) const;
  BatchedSignature* FindOn(const tensor::Signature& signature) const;
  void TurnOffIfWriting(const PreparedRun& run) const;

  const std::unique_ptr<Servable> inner_;
  const BatchSettings settings_;
  std::vector<std::unique_ptr<BatchedSignature>> states_;  // of each signature
  const std::unique_ptr<BatchedSignature> joint_state_;    // of runs of several signatures
};

}  // namespace millpond::servable
