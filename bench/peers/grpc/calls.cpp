// gRPC's C++ library, driven by src/grpc_cpp.rs: the synchronous server and stub of its quick
// start, with its defaults. A call returns null, or an error text that is valid until the client's
// next call.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "calls.grpc.pb.h"

using namespace upcall::bench;
using Clock = std::chrono::steady_clock;
using grpc::ClientContext;
using grpc::ServerContext;
using grpc::Status;

// The answers of all systems, in Rust.
extern "C" const std::size_t upcall_grpc_big;
extern "C" std::int32_t upcall_grpc_answer_add(std::int32_t a, std::int32_t b);
extern "C" std::uint64_t upcall_grpc_answer_bytes_in(const char *data, std::size_t len);
extern "C" void upcall_grpc_answer_big_in_out(const char *data, std::size_t len, char *out);

class Served final : public Calls::Service {
    Status Null(ServerContext *, const Nothing *, Nothing *) override { return Status::OK; }

    Status Add(ServerContext *, const Pair *request, Number *reply) override {
        reply->set_value(upcall_grpc_answer_add(request->a(), request->b()));
        return Status::OK;
    }

    Status BytesIn(ServerContext *, const Data *request, Sum *reply) override {
        reply->set_value(
            upcall_grpc_answer_bytes_in(request->data().data(), request->data().size()));
        return Status::OK;
    }

    Status BigInOut(ServerContext *, const Data *request, Data *reply) override {
        reply->mutable_data()->resize(upcall_grpc_big);
        upcall_grpc_answer_big_in_out(request->data().data(), request->data().size(),
                                      reply->mutable_data()->data());
        return Status::OK;
    }
};

struct Server {
    Served calls;
    std::unique_ptr<grpc::Server> running;
};

// Returns null if the server cannot listen there. The library reports the reason on standard error.
extern "C" Server *upcall_grpc_serve(const char *address) {
    auto server = std::make_unique<Server>();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&server->calls);
    server->running = builder.BuildAndStart();
    return server->running ? server.release() : nullptr;
}

extern "C" void upcall_grpc_stop(Server *server) {
    server->running->Shutdown();
    delete server;
}

struct Client {
    std::unique_ptr<Calls::Stub> calls;
    std::string wrong;

    const char *outcome(const Status &status) {
        if (status.ok()) return nullptr;
        wrong =
            "gRPC status " + std::to_string(status.error_code()) + ": " + status.error_message();
        return wrong.c_str();
    }
};

// Returns null if no server answers within some seconds.
extern "C" Client *upcall_grpc_connect(const char *address) {
    auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10)))
        return nullptr;
    return new Client{Calls::NewStub(channel), {}};
}

extern "C" void upcall_grpc_disconnect(Client *client) { delete client; }

extern "C" const char *upcall_grpc_null(Client *client) {
    ClientContext context;
    Nothing request, reply;
    return client->outcome(client->calls->Null(&context, request, &reply));
}

extern "C" const char *upcall_grpc_add(Client *client, std::int32_t a, std::int32_t b,
                                       std::int32_t *sum) {
    ClientContext context;
    Pair request;
    Number reply;
    request.set_a(a);
    request.set_b(b);
    Status status = client->calls->Add(&context, request, &reply);
    *sum = reply.value();
    return client->outcome(status);
}

extern "C" const char *upcall_grpc_bytes_in(Client *client, const char *data, std::size_t len,
                                            std::uint64_t *sum) {
    ClientContext context;
    Data request;
    Sum reply;
    request.set_data(data, len);
    Status status = client->calls->BytesIn(&context, request, &reply);
    *sum = reply.value();
    return client->outcome(status);
}

extern "C" const char *upcall_grpc_big_in_out(Client *client, const char *data, std::size_t len,
                                              char *out) {
    ClientContext context;
    Data request, reply;
    request.set_data(data, len);
    Status status = client->calls->BigInOut(&context, request, &reply);
    if (status.ok() && reply.data().size() != upcall_grpc_big)
        status = Status(grpc::StatusCode::DATA_LOSS,
                        "the reply has " + std::to_string(reply.data().size()) + " bytes");
    if (status.ok()) std::memcpy(out, reply.data().data(), upcall_grpc_big);
    return client->outcome(status);
}

// Callers that each make their next call when the previous one is answered, until the time is up or
// a call fails.
struct Callers {
    Calls::Stub &calls;
    Clock::time_point end;
    std::size_t calling;
    std::uint64_t answered = 0;
    Status failed = {};
    std::mutex mutex = {};
    std::condition_variable done = {};

    struct Call {
        ClientContext context;
        Nothing request, reply;
    };

    void call() {
        auto one = std::make_shared<Call>();
        calls.async()->Null(&one->context, &one->request, &one->reply,
                            [this, one](Status status) { next(status); });
    }

    void next(const Status &status) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            if (status.ok()) ++answered;
            else failed = status;
            if (!failed.ok() || Clock::now() >= end) {
                if (--calling == 0) done.notify_one();
                return;
            }
        }
        call();
    }
};

// Makes null calls by `callers` callers at once, on the one channel and by its callbacks, and
// stores the number of answered calls.
extern "C" const char *upcall_grpc_outstanding(Client *client, std::size_t callers,
                                               std::uint64_t ns, std::uint64_t *answered) {
    Callers all{*client->calls, Clock::now() + std::chrono::nanoseconds(ns), callers};
    for (std::size_t caller = 0; caller < callers; ++caller) all.call();
    std::unique_lock<std::mutex> lock(all.mutex);
    all.done.wait(lock, [&] { return all.calling == 0; });
    *answered = all.answered;
    return client->outcome(all.failed);
}
