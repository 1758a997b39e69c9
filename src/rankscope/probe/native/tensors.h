/* The numbers of a tensor, where they can be read from here: through the table of functions that DLPack defines for
   libraries that hand tensors to each other. One call tells all that is to be known of a tensor, makes no object and
   reads no argument by name. */

#ifndef RANKSCOPE_TENSORS_H
#define RANKSCOPE_TENSORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_CPU 1
enum { DLPACK_FLOAT = 2, DLPACK_BFLOAT = 4 };

typedef struct {
    void *data;
    int32_t device, device_number;
    int32_t dimensions;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Description;

typedef int (*Describe)(void *tensor, Description *into);

typedef struct {
    uint32_t major, minor;
    void *older;
    void *allocate, *give, *take;
    Describe describe; /* may be NULL */
    void *stream;
} ExchangeTable;

/* NULL where this torch has no such table, or one of a version unknown here. */
static Describe describe_of(PyObject *type) {
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    ExchangeTable *table = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule); /* the table stays as long as the process */
    PyErr_Clear();
    return table == NULL || table->major != DLPACK_MAJOR ? NULL : table->describe;
}

/* How many numbers there are, if they lie one behind the other; otherwise -1. */
static Py_ssize_t numbers_in_row(const Description *tensor) {
    int64_t count = 1;
    for (int at = tensor->dimensions - 1; at >= 0; at--) {
        if (tensor->shape[at] != 1 && tensor->strides != NULL && tensor->strides[at] != count) {
            return -1;
        }
        count *= tensor->shape[at];
    }
    return (Py_ssize_t)count;
}

/* Not finite: all bits of the exponent are set. The loops have no way out before their end: they are vectors. */
static int all_finite(const Description *tensor, Py_ssize_t count) {
    const char *values = (const char *)tensor->data + tensor->byte_offset;
    int bad = 0;
    if (tensor->bits == 32 && tensor->code == DLPACK_FLOAT) {
        const uint32_t *bits = (const uint32_t *)values;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & 0x7f800000u) == 0x7f800000u;
        }
    } else if (tensor->bits == 64 && tensor->code == DLPACK_FLOAT) {
        const uint64_t *bits = (const uint64_t *)values;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & 0x7ff0000000000000u) == 0x7ff0000000000000u;
        }
    } else if (tensor->bits == 16 && (tensor->code == DLPACK_FLOAT || tensor->code == DLPACK_BFLOAT)) {
        const uint16_t *bits = (const uint16_t *)values, exponent = tensor->code == DLPACK_BFLOAT ? 0x7f80 : 0x7c00;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & exponent) == exponent;
        }
    } else {
        return 0; /* numbers of another kind */
    }
    return !bad;
}

/* Whether this is a tensor of torch's own type with at most so many numbers, readable from here and all finite. */
static int is_finite(Describe describe, PyTypeObject *type, PyObject *tensor, Py_ssize_t most) {
    Description found;
    if (describe == NULL || Py_TYPE(tensor) != type) {
        return 0;
    }
    if (describe(tensor, &found) < 0) {
        PyErr_Clear(); /* no numbers of its own: it is sparse, or stands for others */
        return 0;
    }
    if (found.device != DLPACK_CPU || found.lanes != 1 || found.data == NULL) {
        return 0;
    }
    Py_ssize_t count = numbers_in_row(&found);
    return count > 0 && count <= most && all_finite(&found, count);
}

#endif
