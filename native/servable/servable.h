#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tf/output_set.h"
#include "native/tf/run_context.h"
#include "native/tf/session_callables.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::servable {

struct ServableId {
  std::string name;
  int64_t version = 0;
};

// The object that answers requests: one loaded version. What runs behind it may be a TensorFlow
// session, a compiled program on an accelerator or a process of its own; nothing above this file
// knows.
//
// Thread: any number at once, all methods. Owner: a ServableEntry. Destruction frees what the
// version holds, on the calling thread, and may take long: the unloader's business, never a
// request's.
class Servable {
 public:
  Servable() = default;
  Servable(const Servable&) = delete;
  Servable& operator=(const Servable&) = delete;
  virtual ~Servable() = default;

  virtual const ServableId& id() const = 0;
  virtual const tf::SignatureMap& signatures() const = 0;
  // A serialized tensorflow.serving.SignatureDefMap, for GetModelMetadata.
  virtual const std::string& signature_def_map() const = 0;

  // Makes ready what a run for `outputs` of one of signatures() uses, where that is not there yet.
  // May take long: for the thread that loads the version, before it is published.
  virtual base::Status Prepare(const tf::Signature& signature,
                               const tf::OutputSet& outputs) const = 0;

  // Computes `outputs` of one of signatures() from `inputs` in the order of its inputs, which fit
  // it. `result` gets those and no others, in the signature's order.
  virtual base::Status Run(const tf::Signature& signature, const tf::OutputSet& outputs,
                           const tf::RunContext& run, const tf::TensorList& inputs,
                           tf::TensorList* result) const = 0;

  // Computes all outputs of each of `signatures`, which are of signatures(), differ and have one
  // input each: tensor 0 of `inputs`. All of it is one run; `results` gets one list for each.
  // Returns nullopt, and runs nothing, if they have to be run one after the other for now.
  virtual std::optional<base::Status> RunTogether(const std::vector<const tf::Signature*>&,
                                                  const tf::RunContext&, const tf::TensorList&,
                                                  std::vector<tf::TensorList>*) const {
    return std::nullopt;
  }

  // Runs what `names` says of the session behind it. UNIMPLEMENTED where there is none, or where
  // clients may not reach it.
  virtual base::Status RunSession(const tf::SessionRunNames&, const tf::RunContext&,
                                  const tf::TensorList&, tf::TensorList*) const {
    return {base::Code::kUnimplemented, "this version has no session that clients may run"};
  }
};

}  // namespace millpond::servable
