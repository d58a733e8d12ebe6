// UCX, driven by src/messages/ucx.rs: the ucp layer with its defaults, one worker and one endpoint
// a side; active messages, or tag matching. A function returns null, or an error text that lives as
// long as the program.

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <ucp/api/ucp.h>

// Maximum size of a message in bytes, and number of receives that are posted ahead: a message that
// finds no posted receive is copied once more.
enum { LONGEST = 16384, POSTED = 32, HANDLERS = 4 };

typedef void (*Taken)(void *context, uint16_t handler, const void *data, size_t len);

typedef struct Ucx Ucx;

struct Id {
    Ucx *ucx;
    uint16_t handler;
};

struct Posted {
    // The received message, if `done` is set.
    ucp_tag_recv_info_t info;
    ucs_status_t status;
    bool done;
    uint8_t *data;
};

struct Ucx {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    ucp_address_t *address;
    bool by_tag, yields;

    // The receiver of messages, and the number of messages that it has received.
    Taken taken;
    void *to;
    size_t count;
    const char *wrong;

    struct Id ids[HANDLERS];
    // The buffer for a large message.
    uint8_t large[LONGEST];
    uint16_t large_handler;

    struct Posted posted[POSTED];
    size_t next;
};

static const char *text(ucs_status_t status) {
    return status == UCS_OK ? NULL : ucs_status_string(status);
}

static void take(Ucx *ucx, uint16_t handler, const void *data, size_t len) {
    ucx->taken(ucx->to, handler, data, len);
    ++ucx->count;
}

static void large_came(void *request, ucs_status_t status, size_t len, void *data) {
    Ucx *ucx = data;
    if (status == UCS_OK) take(ucx, ucx->large_handler, ucx->large, len);
    else ucx->wrong = text(status);
    ucp_request_free(request);
}

static ucs_status_t came(void *arg, const void *header, size_t header_len, void *data, size_t len,
                         const ucp_am_recv_param_t *param) {
    (void)header, (void)header_len;
    struct Id *id = arg;
    Ucx *ucx = id->ucx;
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        take(ucx, id->handler, data, len);
        return UCS_OK;
    }
    if (len > LONGEST) {
        ucx->wrong = "a message that is too long";
        return UCS_OK;
    }
    // The sender has announced the message. There is never more than one such message in transit
    // here.
    ucx->large_handler = id->handler;
    size_t got = 0;
    ucp_request_param_t fetch = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_RECV_INFO,
        .cb.recv_am = large_came,
        .user_data = ucx,
        .recv_info.length = &got,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(ucx->worker, data, ucx->large, len, &fetch);
    if (request == NULL) {
        take(ucx, id->handler, ucx->large, got);
        return UCS_OK;
    }
    if (UCS_PTR_IS_ERR(request)) ucx->wrong = text(UCS_PTR_STATUS(request));
    return UCS_INPROGRESS;
}

static void tagged_came(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *data) {
    struct Posted *posted = data;
    posted->info = *info;
    posted->status = status;
    posted->done = true;
    ucp_request_free(request);
}

static const char *post(Ucx *ucx, struct Posted *posted) {
    posted->done = false;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_RECV_INFO,
        .cb.recv = tagged_came,
        .user_data = posted,
        .recv_info.tag_info = &posted->info,
    };
    ucs_status_ptr_t request = ucp_tag_recv_nbx(ucx->worker, posted->data, LONGEST, 0, 0, &param);
    if (UCS_PTR_IS_ERR(request)) return text(UCS_PTR_STATUS(request));
    if (request == NULL) {
        posted->status = UCS_OK;
        posted->done = true;
    }
    return NULL;
}

static const char *open_worker(Ucx *ucx) {
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) return text(status);
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = ucx->by_tag ? UCP_FEATURE_TAG : UCP_FEATURE_AM,
    };
    status = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    if (status != UCS_OK) return text(status);
    ucp_worker_params_t worker = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    status = ucp_worker_create(ucx->context, &worker, &ucx->worker);
    if (status != UCS_OK) return text(status);

    for (uint16_t handler = 0; handler < HANDLERS && !ucx->by_tag; ++handler) {
        ucx->ids[handler] = (struct Id){ucx, handler};
        ucp_am_handler_param_t param = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = handler,
            .cb = came,
            .arg = &ucx->ids[handler],
        };
        status = ucp_worker_set_am_recv_handler(ucx->worker, &param);
        if (status != UCS_OK) return text(status);
    }
    for (size_t at = 0; at < POSTED && ucx->by_tag; ++at) {
        ucx->posted[at].data = malloc(LONGEST);
        if (ucx->posted[at].data == NULL) return "no memory left";
        const char *wrong = post(ucx, &ucx->posted[at]);
        if (wrong) return wrong;
    }
    return NULL;
}

// Opens one side. Its address is for the other side, and lives as long as this one.
const char *upcall_ucx_open(bool by_tag, bool yields, Ucx **opened, const void **address,
                            size_t *len) {
    Ucx *ucx = calloc(1, sizeof *ucx);
    if (ucx == NULL) return "no memory left";
    ucx->by_tag = by_tag;
    ucx->yields = yields;
    const char *wrong = open_worker(ucx);
    if (wrong) return wrong;
    *opened = ucx;
    ucs_status_t status = ucp_worker_get_address(ucx->worker, &ucx->address, len);
    *address = ucx->address;
    return text(status);
}

static void progress(Ucx *ucx) {
    if (ucp_worker_progress(ucx->worker) == 0 && ucx->yields) sched_yield();
}

static const char *finish(Ucx *ucx, ucs_status_ptr_t request) {
    if (request == NULL) return NULL;
    if (UCS_PTR_IS_ERR(request)) return text(UCS_PTR_STATUS(request));
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) progress(ucx);
    ucp_request_free(request);
    return text(status);
}

// Sends, and returns when the data may be changed.
const char *upcall_ucx_send(Ucx *ucx, uint16_t handler, const void *data, size_t len) {
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucs_status_ptr_t request =
        ucx->by_tag ? ucp_tag_send_nbx(ucx->endpoint, data, len, handler, &param)
                    : ucp_am_send_nbx(ucx->endpoint, handler, NULL, 0, data, len, &param);
    return finish(ucx, request);
}

// Waits for a message, and passes it and those queued behind it to `taken`.
const char *upcall_ucx_receive(Ucx *ucx, Taken taken, void *to) {
    ucx->taken = taken;
    ucx->to = to;
    ucx->count = 0;
    for (;;) {
        for (struct Posted *posted; ucx->by_tag && (posted = &ucx->posted[ucx->next])->done;) {
            if (posted->status != UCS_OK) return text(posted->status);
            take(ucx, (uint16_t)posted->info.sender_tag, posted->data, posted->info.length);
            const char *wrong = post(ucx, posted);
            if (wrong) return wrong;
            ucx->next = (ucx->next + 1) % POSTED;
        }
        if (ucx->wrong) return ucx->wrong;
        if (ucx->count > 0) return NULL;
        progress(ucx);
    }
}

// Waits until all sent messages have left.
const char *upcall_ucx_flush(Ucx *ucx) {
    ucp_request_param_t param = {.op_attr_mask = 0};
    return finish(ucx, ucp_ep_flush_nbx(ucx->endpoint, &param));
}

// Connects, and returns when the connection is established. The other side must be connecting at
// the same time, or waiting for a message.
const char *upcall_ucx_connect(Ucx *ucx, const void *address) {
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    ucs_status_t status = ucp_ep_create(ucx->worker, &params, &ucx->endpoint);
    return status == UCS_OK ? upcall_ucx_flush(ucx) : text(status);
}
