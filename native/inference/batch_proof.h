#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/servable/batching_servable.h"
#include "native/tensor/run_context.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// Finds out which signatures of a version may be batched, before the version is published: those
// whose rows give in a batch what they give alone (tensor::AreTensorsClose). Also learns how long
// runs of different numbers of rows take, and so warms up such runs.
//
// The rows are those of warm-up requests, which are answered through Answer. A signature without
// such a request is proven with made-up rows. A model that takes only certain values refuses them,
// and is then not batched: give it a warm-up request.
//
// Thread: any number may call Answer; Conclude is called once, after them.
class BatchProof {
 public:
  // The batches of live requests that are checked against single runs after a proof with rows of
  // requests, and after a proof with rows that were made up.
  static constexpr int64_t kCheckedAfterRequests = 2;
  static constexpr int64_t kCheckedAfterMadeUpRows = 8;

  // Borrows the servable. It is not published yet.
  explicit BatchProof(const servable::BatchingServable& servable) : servable_(servable) {}

  // Answers a request as AnswerRequest does, and keeps the inputs of its runs.
  base::StatusOr<std::string> Answer(std::string_view method, base::WireReader request,
                                     int64_t ns_max);

  // Turns batching on or off for each signature (BatchingServable::TurnOn, Refuse). `ns_max` is the
  // longest time of a run.
  void Conclude(bool may_write_variables, int64_t ns_max);

 private:
  class Recorder;

  // Proves one signature and returns "", or the reason why it is not batched.
  std::string Prove(const tensor::Signature& signature, std::vector<tensor::TensorList> samples,
                    int64_t ns_max) const;

  const servable::BatchingServable& servable_;
  std::mutex mutex_;
  // The inputs of some runs of each signature; guarded by mutex_.
  std::map<std::string, std::vector<tensor::TensorList>, std::less<>> samples_;
};

}  // namespace millpond::inference
