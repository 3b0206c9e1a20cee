#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/output_set.h"
#include "native/tensor/run_context.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::servable {

class BatchingServable;  // batching_servable.h
class Session;           // session.h

struct ServableId {
  std::string name;
  int64_t version = 0;
};

// The object that answers requests: one loaded version. The code above this file does not depend on
// what runs the version: a TensorFlow session, a compiled program on an accelerator, or another
// process.
//
// Thread: any number at once, all methods. Owner: a ServableEntry. Destruction frees what the
// version holds, on the calling thread, and may take long. So it belongs on the unloader thread and
// never on a request thread.
class Servable {
 public:
  Servable() = default;
  Servable(const Servable&) = delete;
  Servable& operator=(const Servable&) = delete;
  virtual ~Servable() = default;

  virtual const ServableId& id() const = 0;
  virtual const tensor::SignatureMap& signatures() const = 0;
  // A serialized tensorflow.serving.SignatureDefMap, for GetModelMetadata.
  virtual const std::string& signature_def_map() const = 0;

  // Makes what runs `outputs` of one of signatures(), unless it is made already. It may take long.
  // It is for the thread that loads the version, before the version is published.
  virtual base::Status MakeCallable(const tensor::Signature& signature,
                                    const tensor::OutputSet& outputs) const = 0;

  // Computes `outputs` of one of signatures(). `inputs` are in the order of the signature's inputs,
  // and fit their specs. `result` gets exactly the outputs asked for, in the signature's order.
  virtual base::Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                           const tensor::RunContext& run, const tensor::TensorList& inputs,
                           tensor::TensorList* result) const = 0;

  // Computes all outputs of each of `signatures` in one run. They are different ones of
  // signatures(), and have one input each, which is tensor 0 of `inputs`. `results` gets one list
  // for each signature. Returns nullopt, without a run, if the signatures have to be run one after
  // the other for now.
  virtual std::optional<base::Status> RunTogether(const std::vector<const tensor::Signature*>&,
                                                  const tensor::RunContext&,
                                                  const tensor::TensorList&,
                                                  std::vector<tensor::TensorList>*) const {
    return std::nullopt;
  }

  // True if a request's writes could change the answer to a later request. May become true at any
  // time.
  virtual bool MayChangeAnswers() const { return false; }

  // The object that batches the requests of this version; null if nothing does.
  virtual const BatchingServable* batching() const { return nullptr; }

  // True if the version is compiled for each shape: it is warm only for the sizes that it has run.
  virtual bool CompilesEachShape() const { return false; }

  // The graph behind this version, for SessionRun; null if the version has none.
  virtual const Session* session() const { return nullptr; }
};

}  // namespace millpond::servable
