#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/servable/batching_servable.h"
#include "native/tensor/row_verdict.h"
#include "native/tensor/run_context.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// The limits and the end of a verification's runs.
struct VerifierLimits {
  // The longest time of a run.
  int64_t run_ns_max = tensor::RunContext::kNoDeadline;
  // Once it is true, each run ends at its next kernel. Null: nothing cancels it.
  const std::atomic<bool>* is_cancelled = nullptr;
  // False: requests that are answered end before they change a variable. The verifier's own runs
  // always do.
  bool may_write = true;
  // No hot batch is begun later than this after WarmUp has begun. Live requests are only probable
  // to come in such batches: more time would delay the swap.
  int64_t warm_up_ns_max = 10'000'000'000;

  bool AreCancelled() const {
    return is_cancelled != nullptr && is_cancelled->load(std::memory_order_relaxed);
  }
};

// Decides which signatures of a version may be batched, before the version is published, by what
// their graphs show (tensor::RowVerdict):
//
// - independent: it is batched. Rounding cannot turn that off. Its rows are compared
//   all the same, as a check of the analysis: it is refused only if they depend on the other rows
//   of a batch.
// - unknown: it is batched if its rows give in a batch what they give alone (tensor::Compare). A
//   share of its live batches is compared without end, because a model may mix rows for rare
//   values.
// - mixes: it is not batched, unless the settings say so by name; then as if unknown.
//
// The comparison also learns how long runs of different numbers of rows take, and warms them up.
// Its rows are those of warm-up requests, which are answered through Answer. Without such a request
// it takes made-up rows. A model that takes only certain values refuses these, and is then batched
// if its graph shows its rows to be independent: otherwise give it a warm-up request.
//
// Then it runs the batches that the version's predecessor runs most often, so that the version is
// warm for them too.
//
// Thread: any number may call Answer; Conclude is called once, after them, and then WarmUp.
class BatchVerifier {
 public:
  // The first batches of live requests that are checked with single runs (servable::BatchChecks):
  // after a verification with rows of requests, and after one with made-up rows.
  static constexpr int64_t kCheckedAfterRequests = 2;
  static constexpr int64_t kCheckedAfterMadeUpRows = 8;
  // A callable's second run is as fast as any later one (docs/design.md, "Run inline").
  static constexpr int kWarmUpRunCount = 2;

  // Borrows the servable. It is not published yet.
  explicit BatchVerifier(const servable::BatchingServable& servable) : servable_(servable) {}

  // Answers a request as AnswerRequest does, and keeps the inputs of its runs.
  base::StatusOr<std::string> Answer(std::string_view method, base::WireReader request,
                                     const VerifierLimits& limits);

  // Turns batching on or off for each signature (BatchingServable::TurnOn, Refuse), by the verdicts
  // that the servable has. Returns CANCELLED if it is cancelled; it then leaves further
  // signatures off.
  base::Status Conclude(bool may_write_variables, const VerifierLimits& limits);

  // Runs each of `batches`, the hottest of the predecessor first, kWarmUpRunCount times on rows of
  // its samples. Leaves out the batches that this version does not have: of a signature that is not
  // batched here, or of an output that does not exist here. Returns the number of batches that were
  // run, or CANCELLED. A batch that fails is left out: live requests of a failed batch run one by
  // one.
  base::StatusOr<int64_t> WarmUp(const std::vector<servable::HotBatch>& batches,
                                 const VerifierLimits& limits) const;

 private:
  class Recorder;

  // Returns the reason why a signature is not batched, or "". Keeps rows of it if it is and has
  // some.
  std::string Verify(const tensor::Signature& signature, const tensor::RowVerdict& verdict,
                     std::vector<tensor::TensorList> samples, const VerifierLimits& limits);
  // Compares rows of a signature; otherwise like Verify.
  std::string Try(const tensor::Signature& signature, bool is_independent,
                  std::vector<tensor::TensorList> samples, const VerifierLimits& limits);
  base::Status WarmUpFor(const servable::HotBatch& batch, const VerifierLimits& limits) const;

  const servable::BatchingServable& servable_;
  std::mutex mutex_;
  // The inputs of some runs of each signature; guarded by mutex_.
  std::map<std::string, std::vector<tensor::TensorList>, std::less<>> samples_;
  // Some rows of each signature that is batched. Set by Conclude.
  std::map<std::string, tensor::TensorList, std::less<>> verified_rows_;
};

}  // namespace millpond::inference
