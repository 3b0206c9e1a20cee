#include "native/servable/answer_requests.h"

#include <memory>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/servable/batch.h"
#include "native/servable/batching_servable.h"
#include "native/servable/prepared_run.h"

namespace millpond::servable {
namespace {

// The batches, one after the other, for which a thread takes requests before it does anything else.
// A request that fits none of them runs alone.
constexpr int kTakingBatchesMax = 2;
// The most answers that are held back, so that the first answer does not wait for all.
constexpr size_t kUnsentMax = 16;
// The longest message of a request that may run between two pieces of a large one, because its
// decoding and its run should take only a moment.
constexpr size_t kSmallBytes = 64 * 1024;

// A request with the run that it asks for.
struct PreparedRequest {
  std::unique_ptr<WaitingRequest> owner;  // null: its owner answers it
  WaitingRequest* request = nullptr;      // null: no request is left
  PreparedRun* run = nullptr;
};

PreparedRequest Prepare(std::unique_ptr<WaitingRequest> request) {
  PreparedRun* const run = request->Prepare();
  if (run == nullptr) return {};
  WaitingRequest* const borrowed = request.get();
  return {std::move(request), borrowed, run};
}

// The requests of one batch, on the thread that answers them.
class Answering {
 public:
  explicit Answering(WaitingRequests* waiting) : waiting_(*waiting) {}

  // Answers `first` with the requests that share its run. Takes none if `takes` is false. Returns
  // the request that was taken and did not fit.
  PreparedRequest AnswerBatch(PreparedRequest first, bool takes, const Batch::GiveTurn& give_turn) {
    PreparedRun* const run = first.run;
    const BatchingServable* const batching = run->servable->batching();
    BatchedSignature* const signature = batching == nullptr ? nullptr : batching->FindBatched(*run);
    requests_.push_back(std::move(first));
    PreparedRequest misfit;
    if (signature == nullptr) {
      RunAlone(run);
    } else {
      Batch batch(batching->inner(), batching->settings(), signature, run);
      if (takes) misfit = TakeOthers(&batch);
      waiting_.EndTaking();
      batch.Run(give_turn);
    }
    FinishAll();
    return misfit;
  }

 private:
  PreparedRequest TakeOthers(Batch* batch) {
    while (const auto bytes_max = batch->TakeRoom(waiting_)) {
      std::unique_ptr<WaitingRequest> request = waiting_.Take(batch->key(), *bytes_max);
      if (request == nullptr) break;
      PreparedRequest prepared = Prepare(std::move(request));
      if (prepared.run == nullptr) continue;
      prepared.run->Enter(metrics::Phase::kBatch, base::MonotonicNs());
      if (!batch->TryAdd(prepared.run)) return prepared;
      requests_.push_back(std::move(prepared));
    }
    return {};
  }

  void FinishAll() {
    size_t sent_count = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].request->Finish();
      if (i + 1 < requests_.size() && i + 1 - sent_count < kUnsentMax) continue;
      for (; sent_count <= i; ++sent_count) requests_[sent_count].request->Send();
    }
    for (const PreparedRequest& prepared : requests_) prepared.request->Offer();
  }

  WaitingRequests& waiting_;
  std::vector<PreparedRequest> requests_;
};

void AnswerAll(PreparedRequest first, WaitingRequests* waiting, const Batch::GiveTurn& give_turn) {
  for (int count = 1; first.run != nullptr; ++count) {
    first = Answering(waiting).AnswerBatch(std::move(first), count <= kTakingBatchesMax, give_turn);
  }
}

}  // namespace

void AnswerRequests(WaitingRequest* first, WaitingRequests* waiting) {
  PreparedRun* const run = first->Prepare();
  if (run == nullptr) return;
  // A large request that runs in such a turn gives no turns itself, because the first one waits
  // already.
  const auto give_turn = [waiting](int64_t ns_max) {
    const int64_t begin_ns = base::MonotonicNs();
    while (base::MonotonicNs() - begin_ns < ns_max) {
      std::unique_ptr<WaitingRequest> request = waiting->Take(kAnyBatchKey, kSmallBytes);
      if (request == nullptr) return;
      AnswerAll(Prepare(std::move(request)), waiting, {});
    }
  };
  AnswerAll({nullptr, first, run}, waiting, give_turn);
}

}  // namespace millpond::servable
