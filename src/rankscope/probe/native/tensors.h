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
/* Of a gradient: read whole up to there, by its edges where it has no more rows, and not here where there are more
   values. As in parameters.py. */
#define SMALL 4096
#define MOST_ROWS 4096
#define ROWS_READ 256
#define MOST_VALUES 65536
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

/* How many numbers lie one behind the other in a tensor of torch's own type that is readable from here; otherwise -1. */
static Py_ssize_t read_tensor(Describe describe, PyTypeObject *type, PyObject *tensor, Description *found) {
    if (describe == NULL || Py_TYPE(tensor) != type) {
        return -1;
    }
    if (describe(tensor, found) < 0) {
        PyErr_Clear(); /* no numbers of its own: it is sparse, or stands for others */
        return -1;
    }
    if (found->device != DLPACK_CPU || found->lanes != 1 || found->data == NULL) {
        return -1;
    }
    return numbers_in_row(found);
}

static int is_finite_number(Describe describe, PyTypeObject *type, PyObject *tensor) {
    Description found;
    return read_tensor(describe, type, tensor, &found) == 1 && all_finite(&found, 1);
}

/* As `edges` in parameters.py: the first row, and the middle of every row or of some. */
static int edges_finite(const Description *tensor, Py_ssize_t rows, Py_ssize_t length) {
    Py_ssize_t apart = (rows + ROWS_READ - 1) / ROWS_READ;
    Description number = *tensor;
    int good = all_finite(tensor, length);
    number.byte_offset += (uint64_t)(length / 2) * (tensor->bits / 8);
    for (Py_ssize_t at = 0; at < rows; at += apart) {
        good &= all_finite(&number, 1);
        number.byte_offset += (uint64_t)(apart * length) * (tensor->bits / 8);
    }
    return good;
}

/* Whether a gradient is all finite, by what is looked at of it. 0 also where it is left to Python. */
static int looks_finite(Describe describe, PyTypeObject *type, PyObject *tensor) {
    Description found;
    Py_ssize_t count = read_tensor(describe, type, tensor, &found);
    if (count > SMALL && found.dimensions > 1 && found.shape[0] <= MOST_ROWS && count / found.shape[0] <= MOST_VALUES) {
        return edges_finite(&found, found.shape[0], count / found.shape[0]);
    }
    return count > 0 && count <= MOST_VALUES && all_finite(&found, count);
}

#endif
