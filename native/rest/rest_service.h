#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "native/rest/rest_methods.h"
#include "native/rest/rest_target.h"
#include "native/rpc/call.h"
#include "native/rpc/http_documents.h"
#include "native/rpc/http_route.h"
#include "native/rpc/method.h"
#include "native/rpc/model_method.h"

namespace millpond::rest {

// Returns the key of the batches that a request may join, as its target and the ends of its body
// show it. A guess, as every key: the signature's name may stand elsewhere in the body.
servable::BatchKey BatchKeyOf(const RestTarget& target, std::string_view body);

// A method of the REST API that a version answers: from JSON, in the blocks of the socket,
// to JSON.
//
// Thread: as rpc::ModelMethod.
class RestMethod final : public rpc::ModelMethod {
 public:
  // `body_bytes_max` is the limit of a body that is inflated.
  RestMethod(metrics::Method method, const rpc::ModelMethodParts& parts, size_t body_bytes_max)
      : ModelMethod(method, parts), method_(method), body_bytes_max_(body_bytes_max) {}

  std::string ModelNameOf(const rpc::Call& call) const override;
  servable::BatchKey BatchKeyOf(const rpc::Call& call) const override;

 protected:
  base::Status Prepare(rpc::ModelCall* call) const override;

 private:
  base::Status PrepareBody(rpc::ModelCall* call, std::string_view body,
                           PreparedRest* prepared) const;

  const metrics::Method method_;
  const size_t body_bytes_max_;
};

// The metadata of a version over HTTP. The default version answers, and never the canary by its
// share: a client gets the canary's metadata if it names the canary's number.
//
// Thread: as rpc::CallHandler.
class MetadataMethod final : public rpc::CallHandler {
 public:
  explicit MetadataMethod(const rpc::ModelMethodParts& parts) : parts_(parts) {}
  void Handle(rpc::Call* call) override;

 private:
  const rpc::ModelMethodParts parts_;
};

// Answers with documents that the control plane has made.
//
// Thread: as rpc::CallHandler.
class DocumentMethod final : public rpc::CallHandler {
 public:
  explicit DocumentMethod(const rpc::HttpDocuments* documents) : documents_(*documents) {}
  void Handle(rpc::Call* call) override;

 private:
  const rpc::HttpDocuments& documents_;
};

// The requests over HTTP that need no Python, by their targets: those that versions answer, and
// questions about models and the server.
//
// Thread: any, because it never changes. It outlives the server that has it.
class RestService final : public rpc::HttpRoutes {
 public:
  // Borrows what `parts` borrows, and the documents.
  RestService(const rpc::ModelMethodParts& parts, const rpc::HttpDocuments* documents,
              size_t body_bytes_max);

  const rpc::Method* Find(std::string_view http_method, std::string_view target) const override;

 private:
  const rpc::Method* FindRun(std::string_view target) const;
  const rpc::Method* FindDocument(std::string_view target) const;

  const rpc::HttpDocuments& documents_;
  RestMethod predict_;
  RestMethod classify_;
  RestMethod regress_;
  RestMethod infer_;
  MetadataMethod metadata_;
  DocumentMethod document_;
  const rpc::Method predict_route_;
  const rpc::Method classify_route_;
  const rpc::Method regress_route_;
  const rpc::Method infer_route_;
  const rpc::Method metadata_route_;
  const rpc::Method document_route_;
};

}  // namespace millpond::rest
