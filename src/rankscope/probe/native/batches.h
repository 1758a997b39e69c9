/* Batches: `__next__` of a loader's iterator. */

#ifndef RANKSCOPE_BATCHES_H
#define RANKSCOPE_BATCHES_H

#include "shortcut.h"

static PyObject *BATCH, *NUM_YIELDED;

enum { ADVANCE, EXHAUSTED, FED };

static PyObject *references(PyObject *const *tensors, Py_ssize_t count) {
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t at = 0; found != NULL && at < count; at++) {
        PyObject *reference = PyWeakref_NewRef(tensors[at], NULL);
        if (reference == NULL) {
            Py_CLEAR(found);
        } else {
            PyTuple_SET_ITEM(found, at, reference);
        }
    }
    return found;
}

static void note_batch(Shortcut *shortcut, PyObject *batch) {
    Beat *beat = shortcut->beat;
    PyObject *found = NULL;
    if (Py_TYPE(batch) == beat->tensor) {
        found = PyWeakref_NewRef(batch, NULL);
    } else if (PyList_CheckExact(batch) || PyTuple_CheckExact(batch)) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(batch);
        found = references(PySequence_Fast_ITEMS(batch), count < beat->most_tensors ? count : beat->most_tensors);
        PyErr_Clear(); /* not all are tensors */
    }
    if (found == NULL) {
        found = PyObject_CallFunctionObjArgs(shortcut->parts[FED], BATCH, batch, NULL);
        PyErr_Clear();
    } else {
        beat->batch_step = (long long)beat->words[beat->counters + STEPS];
        replace(&beat->batch, found);
    }
    Py_XDECREF(found);
}

static PyObject *next_batch(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    long long yielded;
    if (beat->full || beat->words == NULL || PyVectorcall_NARGS(nargsf) != 1 || keywords != NULL ||
        beat->loader != (uintptr_t)args[0] || (yielded = attribute_number(args[0], NUM_YIELDED)) <= 0) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    uint64_t *words = beat->words, *loader = words + beat->loader_word, since = now_ns();
    loader[LOADER_TIME] = words[beat->counters + CHANGED] = since;
    loader[LOADER_BATCHES] = (uint64_t)yielded;
    loader[LOADER_NUMBER] = beat->loader_number;
    loader[LOADER_STATE] = (uint64_t)beat->loader_site | beat->waiting;
    PyObject *batch = PyObject_Vectorcall(shortcut->parts[ADVANCE], args, nargsf, NULL);
    if (batch == NULL) {
        if (PyErr_ExceptionMatches(PyExc_StopIteration)) {
            Py_INCREF(args[0]);
            call_aside(shortcut->parts[EXHAUSTED], args[0], PyLong_FromLongLong(yielded));
        }
        return NULL;
    }
    uint64_t now = now_ns();
    words = beat->words; /* the process may have forked meanwhile, and moved to another page */
    loader = words + beat->loader_word;
    loader[LOADER_TIME] = words[beat->counters + CHANGED] = now;
    words[beat->counters + BATCHES]++;
    loader[LOADER_BATCHES] = (uint64_t)yielded + 1;
    loader[LOADER_STATE] = (uint64_t)beat->loader_site | beat->gave;
    beat->data_ns += (long long)(now - since);
    note_batch(shortcut, batch);
    return batch;
}

#endif
